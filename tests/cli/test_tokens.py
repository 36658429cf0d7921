"""`vocabx tokens` on a small source tree with everything in it that real trees have."""

from __future__ import annotations

import inspect
import shlex
import shutil
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from vocabx_utils.cli import main
from vocabx_utils.config import TokenizerConfig
from vocabx_utils.paths import runs_root
from vocabx_utils.vocabulary import audit, proposals
from vocabx_utils.vocabulary.tokens import Proposal, load_extension


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
    return CliRunner().invoke(main, ["tokens", *map(str, arguments)])


def test_propose_then_audit(tree: Path, tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "ext"
    result = call("propose", "--from", tree, "--glob", "*.c", "--n", 12, "--model", tiny_folder, "--out", out)
    assert result.exit_code == 0, result.output
    assert "Read 10 files" in result.output and "Dropped 1 lines" in result.output
    assert "Left out: binary (holds NUL bytes): binary.c\n" in result.output
    assert "Read as: cp1252 (guessed): latin.c\n" in result.output
    assert "saved_per_1000" in result.output and "held-out files" in result.output
    extension = load_extension(out)
    assert sum(t.wanted for t in extension.tokens) == 12 and "frobnicate" in "".join(t.text for t in extension.tokens)
    audited = call("audit", out, "--from", tree, "--glob", "*.c,*.txt")
    assert audited.exit_code == 0, audited.output
    assert ".txt" in audited.output and "tokens no text can produce: 0" in audited.output


@pytest.fixture
def made(tree: Path, tiny_folder: Path, tmp_path: Path) -> tuple[Path, str]:
    """Folder and output of a proposal with steps in it."""
    out = tmp_path / "ext"
    result = call("propose", "--from", tree, "--glob", "*.c", "--n", 12, "--model", tiny_folder, "--out", out)
    return out, result.output


def test_steps_are_printed_as_steps_and_come_on_top(made: tuple[Path, str]) -> None:
    out, output = made
    steps = [t for t in load_extension(out).tokens if not t.wanted]
    assert steps and f"12 new tokens and {len(steps)} steps towards them" in output
    assert output.count(" step ") == len(steps) and " 0 times" not in output


def test_tables_stand_beside_the_json(made: tuple[Path, str]) -> None:
    out, _ = made
    table = pd.read_csv(out / "tokens.csv", keep_default_na=False)
    assert table.text.tolist() == [t.text for t in load_extension(out).tokens]
    files = pd.read_csv(out / "files.csv").set_index("path")
    assert files.loc["binary.c", "use"] == "left out: binary (holds NUL bytes)"
    assert files.loc["latin.c", "encoding"] == "cp1252 (guessed)"
    assert set(files.use) == {"chosen on", "measured on", "left out: binary (holds NUL bytes)"}


def test_the_next_steps_can_be_run(tree: Path, made: tuple[Path, str]) -> None:
    """The audit as printed; the run's parameters are names and values that notebook 01 knows."""
    output = made[1]
    command = next(line for line in output.splitlines() if "tokens audit" in line)
    words = shlex.split(command.split("vocabx tokens ")[1].replace("FOLDER", str(tree)))
    assert call(*words).exit_code == 0
    words = shlex.split(next(line for line in output.splitlines() if "vocabx run" in line))
    given = dict(zip(words[5::3], words[6::3], strict=True))
    settings = TokenizerConfig.from_params(**{**given, "n_tokens": int(given["n_tokens"])})
    assert settings.corpus_source == "tree" and Path(settings.corpus_path) == tree and settings.n_tokens == 12


def advised(output: str) -> dict[str, str]:
    words = shlex.split(next(line for line in output.splitlines() if "vocabx run" in line))
    return dict(zip(words[5::3], words[6::3], strict=True))


def test_the_run_that_is_advised_chooses_with_the_same_options(tree: Path, tiny_folder: Path, tmp_path: Path) -> None:
    """Those that notebook 01 has, with as many tokens as there were; the others are named."""
    words = ["--n", 9999, "--min-count", 5, "--max-bytes", 20, "--strategy", "phrases", "--no-line-breaks",
             "--no-mix-words", "--max-cut", 0.25, "--phrase-form", "literal", "--exclude", "widget"]  # fmt: skip
    root = tree.rename(tree.with_name("my src"))
    output = call("propose", "--from", root, "--model", tiny_folder, "--out", tmp_path / "ext", *words).output
    given = advised(output)
    offered = sum(t.wanted for t in load_extension(tmp_path / "ext").tokens)
    assert given.pop("n_tokens") == str(offered) and offered < 9999
    shown = {
        name: given[name] for name in given if name not in ("model", "corpus_source", "corpus_path", "corpus_glob")
    }
    assert shown == {"strategy": "phrases", "min_count": "5", "max_token_bytes": "20", "line_breaks": "False",
                     "mix_words": "False", "max_cut": "0.25", "phrase_form": "literal"}  # fmt: skip
    assert "and without --min-files and --exclude, so its tokens may differ" in output
    assert "--run-name my-src -p" in output


def test_excluded_tokens_and_those_of_one_file_are_not_proposed(tree: Path, tiny_folder: Path, tmp_path: Path) -> None:
    (tree / "deep" / "w0.c").write_text("int quuxify_now(void);\n" * 40)

    def texts(name: str, *options: object) -> set[str]:
        given = ["--from", tree, "--glob", "*.c", "--n", 30, "--model", tiny_folder, "--held-out", 0]
        result = call("propose", *given, "--out", tmp_path / name, *options)
        assert result.exit_code == 0, result.output
        return {t.text for t in load_extension(tmp_path / name).tokens if t.wanted}

    usual, every = texts("usual"), texts("every", "--min-files", 1)
    assert any("quux" in text for text in every) and not any("quux" in text for text in usual)
    dropped = sorted(usual)[:2]
    assert not set(dropped) & texts("fewer", "--exclude", dropped[0], "--exclude", dropped[1])


@pytest.mark.parametrize("strategy", ["merges", "added"])
def test_a_tree_of_one_file_and_of_two(tiny_folder: Path, tmp_path: Path, strategy: str) -> None:
    root = tmp_path / "small"
    root.mkdir()
    (root / "a.py").write_text(inspect.getsource(textwrap))
    given = ["--from", root, "--n", 8, "--model", tiny_folder, "--strategy", strategy, "--min-count", 2]
    result = call("propose", *given, "--out", tmp_path / "one")
    assert result.exit_code == 0 and "No file was held out" in result.output, result.output
    (root / "b.py").write_text(inspect.getsource(shlex))
    result = call("propose", *given, "--out", tmp_path / "two")
    assert result.exit_code == 0 and "chosen on 1 files; 1 are held out" in result.output, result.output


def test_an_extension_that_breaks_text_is_not_written(
    tree: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "round_trip_failures", lambda extension, texts: [("a b", "a b", "a  b")])
    result = call("propose", "--from", tree, "--n", 5, "--model", tiny_folder, "--out", tmp_path / "new" / "ext")
    assert result.exit_code == 1 and "round-trip failures: 1" in result.output
    assert "Nothing was written" in result.output and not (tmp_path / "new").exists()


def test_out_is_refused_before_any_work(tree: Path, tmp_path: Path) -> None:
    """The model named here does not exist, which nobody gets to see."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    for out, message in [
        (tmp_path / "file", "is not a folder"),
        (tmp_path / "full", "is not empty"),
        (tmp_path / "file" / "below", "cannot be written"),
        (Path("/proc/extension"), "cannot be written"),
        (tmp_path / ("x" * 300), "cannot be written"),
    ]:
        result = call("propose", "--from", tree, "--model", "./none", "--out", out)
        assert result.exit_code == 1 and message in result.output and result.output.count("\n") == 1, result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "full", "src"]


def test_out_may_be_an_empty_folder(tree: Path, tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ext").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ext")
    result = call("propose", "--from", tree, "--n", 5, "--model", tiny_folder, "--out", tmp_path / "link")
    assert result.exit_code == 0, result.output
    names = ["extended", "files.csv", "original", "tokens.csv", "tokens.json"]
    assert sorted(p.name for p in (tmp_path / "ext").iterdir()) == names


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokens.json", b"{"),
        ("tokens.json", b"[]"),
        ("tokens.json", b'{"V": 3}'),
        ("tokens.json", b"\xff\xfe"),
        ("extended/tokenizer.json", b"{}"),
        ("extended/tokenizer.json", None),
        ("original", None),
    ],
)
def test_a_damaged_folder_is_one_line(made: tuple[Path, str], file: str, content: bytes | None) -> None:
    out, _ = made
    if content is not None:
        (out / file).write_bytes(content)
    elif (out / file).is_dir():
        shutil.rmtree(out / file)
    else:
        (out / file).unlink()
    result = call("audit", out)
    assert result.exit_code == 1 and "is damaged" in result.output and result.output.count("\n") == 1, result.output


def test_an_audit_claims_only_what_it_looked_at(tree: Path, made: tuple[Path, str]) -> None:
    alone = call("audit", made[0])
    assert alone.exit_code == 0 and "new tokens not in" not in alone.output and "not measured" in alone.output
    on_tree = call("audit", made[0], "--from", tree, "--glob", "*.txt")
    assert "new tokens not in the texts: " in on_tree.output and "training data" not in on_tree.output


def test_other_warnings_reach_the_user(
    tree: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    select = proposals.select_tokens

    def warns(*given: Any) -> list[Proposal]:
        warnings.warn("something else", UserWarning, stacklevel=2)
        return select(*given)

    monkeypatch.setattr(proposals, "select_tokens", warns)
    with pytest.warns(UserWarning, match="something else"):
        result = call("propose", "--from", tree, "--n", 5000, "--model", tiny_folder, "--out", tmp_path / "out")
    assert "something else" not in result.stdout and "5000 were asked for" in result.stdout


def test_more_tokens_than_there_are(tree: Path, tiny_folder: Path, tmp_path: Path) -> None:
    result = call("propose", "--from", tree, "--n", 5000, "--model", tiny_folder, "--out", tmp_path / "ext")
    assert result.exit_code == 0 and "5000 were asked for" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--glob", "*.rs"], "No file below"),
        (["--n", "0"], "n is 0"),
        (["--held-out", "1"], "below 1"),
        (["--min-files", "0"], "min_files 0; expected"),
        (["--glob", "*.c,!"], "cannot be read"),
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
    assert result.exit_code != 0 and "nowhere: it does not exist" in result.output
    file = tree / "notes.txt"
    result = call("propose", "--from", file, "--model", tiny_folder, "--out", tmp_path / "ext")
    assert result.exit_code != 0 and "notes.txt: it is a file" in result.output
    result = call("propose", "--from", tree, "--model", tiny_folder, "--out", tree)
    assert result.exit_code != 0 and "not empty" in result.output


def test_bad_input_of_audit(tmp_path: Path) -> None:
    assert "tokens.json is missing" in call("audit", tmp_path).output
    assert "Give either" in call("audit").output


@pytest.mark.parametrize("name", ["none-such", "../x", "", "."])
def test_an_audit_of_a_run_that_is_not_there_makes_none(name: str) -> None:
    before = sorted(runs_root().parent.rglob("*"))
    result = call("audit", "--run-name", name)
    assert result.exit_code != 0 and f"There is no run {name!r}" in result.output
    assert sorted(runs_root().parent.rglob("*")) == before


def test_phrases_are_proposed_written_and_audited(tree: Path, tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "ext"
    asked = ["--strategy", "phrases", "--no-line-breaks", "--max-phrase-bytes", 40]
    result = call("propose", "--from", tree, "--glob", "*.c", "--n", 6, "--model", tiny_folder, "--out", out, *asked)
    assert result.exit_code == 0, result.output
    extension = load_extension(out)
    assert extension.strategy == "phrases" and extension.report["phrases"] > 0
    assert not any("\n" in t.text or len(t.raw) > 40 for t in extension.tokens)
    assert "positions outside new tokens whose token differs:" in result.output
    audited = call("audit", out, "--from", tree, "--glob", "*.c")
    assert audited.exit_code == 0, audited.output
