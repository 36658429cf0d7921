"""`vocabx tokens` on a small source tree with everything in it that real trees have."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vocabx_utils.cli.tokens import tokens
from vocabx_utils.vocabulary.tokens import load_extension


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "src"
    (root / "deep").mkdir(parents=True)
    line = "static inline int frobnicate_widget(struct widget_ctx *ctx) { return ctx->frobnicate_count; }\n"
    for k in range(8):
        (root / "deep" / f"w{k}.c").write_text(f"/* part {k} */\n" + line * 6)
    (root / "latin.c").write_bytes("/* größer als überall, naïve Änderung */\n".encode("latin-1") * 9)
    (root / "binary.c").write_bytes(b"\x00\x01\x02" * 50)
    (root / "minified.c").write_text("int x;\n" + "a" * 9_000 + "\n")
    (root / "notes.txt").write_text(inspect.getsource(textwrap)[:400])
    return root


def call(*arguments: object) -> Result:
    return CliRunner().invoke(tokens, [str(a) for a in arguments])


def test_propose_then_audit(tree: Path, tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "ext"
    result = call("propose", "--from", tree, "--glob", "*.c", "--n", 12, "--model", tiny_folder, "--out", out)
    assert result.exit_code == 0, result.output
    assert "Read 10 files" in result.output and "Dropped 1 lines" in result.output
    assert "Skipped 1 files:\n  binary.c: binary" in result.output
    assert "saved_per_1000" in result.output and "held-out files" in result.output
    extension = load_extension(out)
    assert extension.N == 12 and "frobnicate" in "".join(t.text for t in extension.tokens)
    audited = call("audit", out, "--from", tree, "--glob", "*.c,*.txt")
    assert audited.exit_code == 0, audited.output
    assert ".txt" in audited.output and "tokens no text can produce: 0" in audited.output


def test_more_tokens_than_there_are(tree: Path, tiny_folder: Path, tmp_path: Path) -> None:
    result = call("propose", "--from", tree, "--n", 5000, "--model", tiny_folder, "--out", tmp_path / "ext")
    assert result.exit_code == 0 and "5000 were asked for" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--glob", "*.rs"], "No file below"),
        (["--n", "0"], "n is 0"),
        (["--held-out", "1"], "below 1"),
        (["--strategy", "special"], "not one of"),
        (["--model", "./no-such-folder"], "no-such-folder"),
    ],
)
def test_bad_input_of_propose(
    tree: Path, tiny_folder: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = ["--from", tree, "--model", tiny_folder, "--out", tmp_path / "ext", *arguments]
    result = call("propose", *given)
    assert result.exit_code != 0 and message in result.output
    assert not (tmp_path / "ext").exists()


def test_a_missing_folder_and_a_taken_one(tree: Path, tiny_folder: Path, tmp_path: Path) -> None:
    result = call("propose", "--from", tmp_path / "nowhere", "--model", tiny_folder, "--out", tmp_path / "ext")
    assert result.exit_code != 0 and "No folder" in result.output
    result = call("propose", "--from", tree, "--model", tiny_folder, "--out", tree)
    assert result.exit_code != 0 and "not empty" in result.output


def test_bad_input_of_audit(tmp_path: Path) -> None:
    assert "tokens.json is missing" in call("audit", tmp_path).output
    assert "Give either" in call("audit").output
    result = call("audit", "--run-name", "none-such")
    assert result.exit_code != 0 and "01_tokenizer_extension" in result.output
