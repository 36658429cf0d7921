"""Instruction pairs: sources, rendering, splits."""

import json

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


def test_missing_package_is_named():
    with pytest.raises(CorpusError, match="'no_such_package' is not installed"):
        corpus.pairs_from_packages(["no_such_package"])


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
    import gzip

    path = tmp_path / f"pairs{suffix}"
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    with pytest.raises(CorpusError, match=message):
        corpus.pairs_from_jsonl(path)


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


def test_fingerprint_sees_order_and_cuts():
    assert corpus.fingerprint(["ab", "c"]) != corpus.fingerprint(["a", "bc"]) != corpus.fingerprint(["bc", "a"])


def test_data_path_follows_the_setting(tmp_path, monkeypatch):
    monkeypatch.delenv("VOCABX_DATA", raising=False)
    assert corpus.data_path("a.txt") is None
    monkeypatch.setenv("VOCABX_DATA", str(tmp_path))
    assert corpus.data_path("a.txt") is None
    (tmp_path / "a.txt").write_text("")
    assert corpus.data_path("a.txt") == tmp_path / "a.txt"
