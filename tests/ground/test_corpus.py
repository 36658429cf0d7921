"""Instruction pairs: sources, rendering, splits."""

import ast
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabx_utils import corpus
from vocabx_utils.corpus import CorpusError, Pair


def test_function_of_a_package_becomes_a_pair(tmp_path, monkeypatch):
    package = tmp_path / "mini_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "broken.py").write_text("def f(:\n")
    (package / "work.py").write_text(
        "class A:\n    def double(self, x):\n        '''Double x.\n\n        More.\n        '''\n"
        "        y = 2 * x\n        # keep\n        return y\n\n"
        "    def no_doc(self):\n        a = 1\n        return a\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (pair,) = corpus.pairs_from_packages(["mini_package"])
    assert pair.query == "Write the Python function `double`. Double x."
    assert pair.answer == "```python\ndef double(self, x):\n    y = 2 * x\n    # keep\n    return y\n```"
    assert pair.source == "mini_package/work.py"


def test_statements_are_those_of_ast_walk_in_its_order():
    source = """
if a:
    def f(): return lambda: (yield)
elif b:
    class C:
        async def g(self):
            for x in y:
                def h(): pass
            else:
                with z: pass
else:
    try:
        def i(): pass
    except E:
        def j(): pass
    else:
        def k(): pass
    finally:
        def l(): pass
while a:
    match b:
        case {"c": c} if d:
            def m(): pass
        case _:
            def n(): pass
def o(): pass
"""
    for text in (source, Path(ast.__file__).read_text(encoding="utf-8")):
        tree = ast.parse(text)
        found = [node for node in corpus.walk_statements(tree) if isinstance(node, ast.stmt)]
        assert found == [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def test_missing_package_is_named():
    with pytest.raises(CorpusError, match="'no_such_package' is not installed"):
        corpus.pairs_from_packages(["no_such_package"])


def _jsonl(tmp_path, data, suffix=".jsonl"):
    path = tmp_path / f"pairs{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no pair"),
        (['{"query": "q", "answer": "a"}', "nonsense"], "line 2 is not JSON"),
        (['{"query": "q"}'], "line 1: 'answer' is missing"),
        (['{"query": "q", "answer": 3}'], "line 1: 'answer' is missing, empty or not text"),
    ],
)
def test_bad_json_lines_name_the_line(tmp_path, suffix, lines, message):
    data = "".join(line + "\n" for line in lines).encode()
    with pytest.raises(CorpusError, match=message):
        corpus.pairs_from_jsonl(_jsonl(tmp_path, data, suffix))


ROW = b'{"query": "q", "answer": "a"}\n'


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_json_lines_may_begin_with_a_byte_order_mark(tmp_path, suffix):
    (pair,) = corpus.pairs_from_jsonl(_jsonl(tmp_path, b"\xef\xbb\xbf" + ROW, suffix))
    assert (pair.query, pair.answer) == ("q", "a")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_empty_lines_count_in_the_line_number(tmp_path, suffix):
    path = _jsonl(tmp_path, b"\n" + ROW + b"\n\n" + b'{"query": "q"}\n', suffix)
    with pytest.raises(CorpusError, match=rf"pairs{suffix}, line 5: 'answer' is missing"):
        corpus.pairs_from_jsonl(path)
    path = _jsonl(tmp_path, ROW + b"\n" + ROW, suffix)
    assert [pair.source for pair in corpus.pairs_from_jsonl(path)] == [f"pairs{suffix}, line {n}" for n in (1, 3)]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path, suffix):
    path = _jsonl(tmp_path, ROW + '{"query": "Größe", "answer": "a"}\n'.encode("latin-1"), suffix)
    with pytest.raises(CorpusError, match=rf"pairs{suffix}, line 2 is not UTF-8 .*0xf6.*Convert"):
        corpus.pairs_from_jsonl(path)


def test_a_cut_archive_is_named(tmp_path):
    path = _jsonl(tmp_path, ROW * 4000, ".jsonl.gz")
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(CorpusError, match=r"pairs\.jsonl\.gz is a damaged or cut archive"):
        corpus.pairs_from_jsonl(path)
    path.write_bytes(b"no archive")
    with pytest.raises(CorpusError, match=r"pairs\.jsonl\.gz is a damaged or cut archive"):
        corpus.pairs_from_jsonl(path)


def test_a_cut_last_line_of_own_data_is_an_error_and_not_a_lost_row(tmp_path):
    with pytest.raises(CorpusError, match="line 2 is not JSON"):
        corpus.pairs_from_jsonl(_jsonl(tmp_path, ROW + ROW[:-8]))


def test_text_that_no_tokenizer_takes_is_named_when_it_is_read(tmp_path):
    path = _jsonl(tmp_path, ROW + b'{"query": "q", "answer": "ab\\ud83d"}\n')
    with pytest.raises(CorpusError, match=r"line 2: 'answer' holds '\\ud83d' at character 2"):
        corpus.pairs_from_jsonl(path)
    (pair,) = corpus.pairs_from_jsonl(_jsonl(tmp_path, b'{"query": "q", "answer": "\\ud83d\\ude42"}\n'))
    assert pair.answer == "🙂"


def test_json_lines_round_trip(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"query": "q", "answer": "a", "lang": "c"}) + "\n")
    (pair,) = corpus.pairs_from_jsonl(path)
    assert (pair.query, pair.answer, pair.lang) == ("q", "a", "c")


def test_tree_pieces_hold_the_whole_file(tmp_path):
    text = "".join(f"#define REGISTER_{i} 0x{i:04x}\n" for i in range(200))
    (tmp_path / "regs.h").write_text(text)
    pairs = corpus.pairs_from_tree(tmp_path, "*.h", max_chars=500)
    body = "\n".join(p.answer.removeprefix("```c\n").removesuffix("\n```") for p in pairs)
    assert body == text.strip("\n")
    assert pairs[0].query == f"Write part 1 of {len(pairs)} of the file `regs.h`."


def test_training_text_begins_with_the_evaluation_prompt(tiny_base):
    tokenizer = tiny_base.tokenizer
    pair = Pair("Add.", "```python\ndef add(a, b):\n    return a + b\n```")
    prefill = "```python\ndef add(a, b):\n"
    rendered = corpus.render(pair, "thesis", tokenizer, prefill)
    start = corpus.prompt("Add.", "thesis", tokenizer, prefill)
    assert rendered.text[: rendered.answer_start] == start
    assert start == "<|begin|>### Instruction:\nAdd.\n\n### Answer:\n```python\ndef add(a, b):\n"
    assert rendered.text.endswith("```<|end|>")
    ids = tokenizer(rendered.text, add_special_tokens=False).input_ids
    assert ids[0] == tokenizer.bos_token_id and ids[-1] == tokenizer.eos_token_id


def test_template_errors():
    with pytest.raises(CorpusError, match="needs a tokenizer with a chat template"):
        corpus.prompt("q", "chat")
    with pytest.raises(CorpusError, match="expected 'thesis' or 'chat'"):
        corpus.prompt("q", "other")  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match="not with the prefill"):
        corpus.render(Pair("q", "answer"), prefill="```")


@given(st.lists(st.integers(0, 40), min_size=12, max_size=60), st.integers(0, 5))
def test_splits_never_share_an_answer(numbers, seed):
    pairs = [Pair(f"q{i}", f"answer  {n}") for i, n in enumerate(numbers)]
    different = len(set(numbers))
    sizes = {"tokenizer": different // 3, "train": different // 3, "validation": different // 3}
    splits = corpus.split_pairs(pairs, sizes, seed)
    answers = [p.answer for split in splits.values() for p in split]
    assert len(answers) == len(set(answers)) == sum(sizes.values())
    assert splits == corpus.split_pairs(pairs, sizes, seed)


def test_too_few_pairs():
    with pytest.raises(CorpusError, match="needs 3 pairs; the corpus has 1 different ones of 2"):
        corpus.split_pairs([Pair("a", "x"), Pair("b", "x")], {"train": 3})


@given(st.sets(st.integers(0, 10_000), min_size=40, max_size=80), st.integers(0, 5))
def test_one_pair_more_changes_at_most_one_pick_of_each_split(numbers, seed):
    pairs = [Pair(f"q{n}", f"answer {n}") for n in sorted(numbers)]
    sizes = {"tokenizer": 15, "train": 12, "validation": 6}
    before = corpus.split_pairs(pairs, sizes, seed)
    after = corpus.split_pairs([*pairs[:7], Pair("new", "another answer"), *pairs[7:]], sizes, seed)
    for name, size in sizes.items():
        assert len(set(before[name]) & set(after[name])) >= size - 1
        assert [p for p in before[name] if p in after[name]] == [p for p in after[name] if p in before[name]]


def test_splits_differ_by_seed_and_do_not_follow_the_order_of_the_corpus():
    pairs = [Pair(f"q{n}", f"answer {n}") for n in range(400)]
    first, second = (corpus.split_pairs(pairs, {"train": 100}, seed)["train"] for seed in (0, 1))
    assert 10 < len(set(first) & set(second)) < 45  # 25 expected of a fair draw, standard deviation 3.8
    assert corpus.split_pairs(pairs[::-1], {"train": 100}, 0)["train"] == first


def test_a_limit_takes_the_same_pairs_from_a_corpus_with_one_more(tmp_path):
    rows = [f'{{"query": "q{n}", "answer": "a{n}"}}\n'.encode() for n in range(100)]
    kept = {p.query for p in corpus.pairs_from_jsonl(_jsonl(tmp_path, b"".join(rows)), 20)}
    fewer = {p.query for p in corpus.pairs_from_jsonl(_jsonl(tmp_path, b"".join(rows[1:])), 20)}
    assert len(kept) == 20 and len(kept & fewer) >= 19


def test_what_only_one_python_version_brings_is_left_out(tmp_path, monkeypatch):
    function = 'def f(x):\n    """Say {0}."""\n    y = "{0}"\n    z = y\n    return z\n'
    for name in ("__init__.py", "distutils/core.py", "core.py"):
        path = tmp_path / "versioned" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(function.format(name))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {p.source for p in corpus.pairs_from_packages(["versioned"])} == {
        "versioned/__init__.py",
        "versioned/core.py",
    }


ASKED = {"tokenizer": 2000, "train": 1500, "validation": 400}
LEAST = {"tokenizer": 20, "train": 20, "validation": 10}


@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        (3900, ASKED),
        (3642, {"tokenizer": 1867, "train": 1400, "validation": 373}),
        (60, {"tokenizer": 27, "train": 23, "validation": 10}),
        (50, {"tokenizer": 20, "train": 20, "validation": 10}),
    ],
)
def test_sizes_are_shares_of_a_corpus_that_is_too_small(texts, sizes):
    pairs = [Pair(f"q{n}", f"answer {n}") for n in range(texts)]
    shared = corpus.shared_sizes(pairs, ASKED, LEAST)
    assert {name: len(split) for name, split in corpus.split_pairs(pairs, shared).items()} == shared
    assert shared == sizes


def test_a_corpus_that_is_too_small_for_shares_is_refused():
    pairs = [Pair(f"q{n}", f"answer {n}") for n in range(49)]
    with pytest.raises(CorpusError, match=r"has 49 different texts; the splits need at least .* 50 together"):
        corpus.shared_sizes(pairs, ASKED, LEAST)


@pytest.mark.parametrize(("source", "shared"), [("tree", True), ("jsonl", True), ("packages", False), ("hub", False)])
def test_only_a_corpus_of_ones_own_is_shared_out(source, shared):
    from vocabx_utils.config import TokenizerConfig
    from vocabx_utils.vocabulary.splits import split_sizes

    config = TokenizerConfig(corpus_source=source, corpus_path="" if source == "packages" else "here")
    sizes = split_sizes(config, [Pair(f"q{n}", f"answer {n}") for n in range(390)])
    assert sizes == ({"tokenizer": 200, "train": 150, "validation": 40} if shared else ASKED)


def test_fingerprint_sees_order_and_cuts():
    assert corpus.fingerprint(["ab", "c"]) != corpus.fingerprint(["a", "bc"]) != corpus.fingerprint(["bc", "a"])


def test_data_path_follows_the_setting(tmp_path, monkeypatch):
    monkeypatch.delenv("VOCABX_DATA", raising=False)
    assert corpus.data_path("a.txt") is None
    monkeypatch.setenv("VOCABX_DATA", str(tmp_path))
    assert corpus.data_path("a.txt") is None
    (tmp_path / "a.txt").write_text("")
    assert corpus.data_path("a.txt") == tmp_path / "a.txt"
