"""Reading folders and JSON Lines, and the split by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import chat_tokenizer, tokenizers

from vocabx_utils.adaptation.texts import Text, read_texts, split_texts, spread, texts_by_kind
from vocabx_utils.source_tree import CorpusError


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_folder_gives_its_files_by_glob(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_text("x = 1\n")
    (tmp_path / "b.txt").write_text("words\n")
    (tmp_path / "c.bin").write_bytes(b"\0\1\2")
    told: list[str] = []
    found = read_texts(tmp_path, tokenizers().original, tell=told.append)
    assert [(t.name, t.kind, t.plain) for t in found] == [("b.txt", ".txt", "words\n"), ("deep/a.py", ".py", "x = 1\n")]
    assert "left out 1 files" in told[0] and "c.bin" in told[0]
    assert [t.name for t in read_texts(tmp_path, tokenizers().original, glob="*.py")] == ["deep/a.py"]
    assert list(texts_by_kind(found)) == [".py", ".txt"]


def test_rows_are_texts_or_pairs_under_several_names(tmp_path: Path) -> None:
    rows = [
        {"text": "one", "source": "a.md", "lang": "en"},
        {"query": "two?", "answer": "yes"},
        {"instruction": "three", "output": "no", "path": "a.md"},
        {"prompt": "four", "completion": "ja"},
    ]
    found = read_texts(jsonl(tmp_path / "rows.jsonl", *rows), tokenizers().original)
    assert [t.plain for t in found] == ["one", "two?\nyes", "three\nno", "four\nja"]
    assert [t.name for t in found] == ["a.md", "rows.jsonl, line 2", "a.md", "rows.jsonl, line 4"]
    assert [t.kind for t in found] == ["en", "pairs", "pairs", "pairs"]
    assert found[0].rendered is None and found[0].read == "one"
    assert found[1].read.startswith("### Instruction:\ntwo?") and found[1].read.endswith("yes<eos>")
    [chat] = read_texts(jsonl(tmp_path / "chat.jsonl", rows[1]), chat_tokenizer())
    assert chat.read == "<s>user\ntwo?</s>\n<s>assistant\nyes<eos>"
    assert chat.rendered is not None and chat.read[chat.rendered.answer_start :] == "yes<eos>"


def test_the_input_of_alpaca_stands_behind_the_question(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Sort them.", "input": "3, 1", "output": "1, 3"},
        {"instruction": "Sort them.", "input": "", "output": "what?"},
        {"instruction": "Sort them.", "input": None, "output": "which?"},
    ]
    first, *others = read_texts(jsonl(tmp_path / "rows.jsonl", *rows), tokenizers().original)
    assert first.plain == "Sort them.\n3, 1\n1, 3"
    assert "### Instruction:\nSort them.\n\n### Input:\n3, 1\n\n### Answer:\n1, 3" in first.read
    assert [t.plain for t in others] == ["Sort them.\nwhat?", "Sort them.\nwhich?"]
    assert not any("Input" in t.read for t in others)
    with pytest.raises(CorpusError, match="line 1: 'input' is missing, empty or not text"):
        read_texts(jsonl(tmp_path / "bad.jsonl", rows[0] | {"input": [3, 1]}), tokenizers().original)


def test_copies_are_left_out(tmp_path: Path) -> None:
    told: list[str] = []
    rows = [{"text": "one", "source": "a"}, {"text": "two"}, {"text": "one", "source": "b"}]
    found = read_texts(jsonl(tmp_path / "rows.jsonl", *rows), tokenizers().original, tell=told.append)
    assert [(t.plain, t.name) for t in found] == [("one", "a"), ("two", "rows.jsonl, line 2")]
    assert told == ["left out 1 rows that repeat another one"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no row"),
        ([{"text": "fine"}, {"text": "  "}], "line 2: 'text' is missing, empty or not text"),
        ([{"text": 3}], "line 1: 'text' is missing, empty or not text"),
        ([{"query": "what"}], "line 1: the row has query; expected 'text', or one of query, instruction"),
        ([{"query": "what", "answer": ""}], "'answer' is missing, empty"),
        ([{"text": "half \ud800"}], "half of a surrogate pair"),
        ([{"text": "fine", "source": "a\ud800.py"}], "line 1: 'source' holds .* half of a surrogate pair"),
        ([{"text": "fine", "path": "a\ud800.py"}], "line 1: 'path' holds .* half of a surrogate pair"),
        ([{"query": "what", "answer": "that", "lang": "\udfff"}], "line 1: 'lang' holds .* half of a surrogate pair"),
    ],
)
def test_rows_that_hold_no_text_are_named(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        read_texts(jsonl(tmp_path / "rows.jsonl", *rows), tokenizers().original)


def test_places_without_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="does not exist"):
        read_texts(tmp_path / "nowhere", tokenizers().original)
    with pytest.raises(CorpusError, match="No file below"):
        read_texts(tmp_path, tokenizers().original)
    (tmp_path / "one.txt").write_text("x")
    with pytest.raises(CorpusError, match="is one file"):
        read_texts(tmp_path / "one.txt", tokenizers().original)
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\nno json\n')
    with pytest.raises(CorpusError, match="line 2 is not JSON"):
        read_texts(tmp_path / "bad.jsonl", tokenizers().original)


def texts_of(files: int, rows: int = 1) -> list[Text]:
    return [Text(f"f{k}", "t", f"file {k} row {r} " * 20) for k in range(files) for r in range(rows)]


def test_no_file_stands_in_two_parts_and_none_is_lost() -> None:
    texts = texts_of(30, 3)
    split = split_texts(texts, 0.2, 0.1)
    names = [{t.name for t in part} for part in (split.train, split.validation, split.held_out)]
    assert all(names) and sum(map(len, names)) == 30 and set().union(*names) == {t.name for t in texts}
    assert sum(s["texts"] for s in split.sizes().values()) == 90
    assert 4 <= split.sizes()["held_out"]["files"] <= 6 and 2 <= split.sizes()["validation"]["files"] <= 3
    assert split == split_texts(texts, 0.2, 0.1)
    assert split.digest() != split_texts(texts, 0.4, 0.1).digest() != split_texts(texts_of(31, 3), 0.4, 0.1).digest()
    three = split_texts(texts_of(3), 0.15, 0.1)
    assert [s["files"] for s in three.sizes().values()] == [1, 1, 1]


@pytest.mark.parametrize("files", [1, 2])
def test_fewer_than_three_files_are_refused(files: int) -> None:
    with pytest.raises(CorpusError, match=f"of {files} file.*expected three or more"):
        split_texts(texts_of(files, 5), 0.15, 0.1)


def test_hardly_any_text_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"too short: .* \[4, 4, 4\] bytes; expected 200 or more"):
        split_texts([Text(f"f{k}", "t", "tiny") for k in range(3)], 0.15, 0.1)


def test_pieces_are_taken_from_all_files_in_turn() -> None:
    texts = [Text("a", "t", "aaaa\n" * 50), Text("b", "t", "bbbb\n" * 50), Text("c", "t", "c\n")]
    taken = spread(texts, 20, 60)
    assert [name for name, _ in taken] == ["a", "b", "c"] and taken[0][1] == "aaaa\n" * 4
    everything = spread(texts, 20, 10_000)
    assert "".join(piece for name, piece in everything if name == "a") == texts[0].plain
    assert len(spread(texts, 20, 1)) == 1  # something is measured, however small the limit
