"""Source trees: which files are read, what is left out and named, and how bytes become text."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from vocabx_utils import source_tree
from vocabx_utils.corpus import CorpusError, pairs_from_tree
from vocabx_utils.files import read_jsonl, write_jsonl
from vocabx_utils.progress import progress
from vocabx_utils.source_tree import Document, decode, hold_out, read_source_tree


def write(root: Path, **files: str) -> Path:
    """Write files; `__` in a name is a folder's slash, `_dot_` a dot."""
    for name, text in files.items():
        put(root, name.replace("__", "/").replace("_dot_", "."), text)
    return root


def put(root: Path, name: str, text: str | bytes) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def paths(root: Path, glob: str = "*", **options: bool) -> list[str]:
    return [d.path for d in read_source_tree(root, glob, **options).documents]


# --- what is read ------------------------------------------------------------------------------------------


def test_encodings_are_read_and_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    put(tmp_path, "a.c", "int é;\n")
    put(tmp_path, "b.c", "int ü;\n".encode("utf-16"))
    put(tmp_path, "sub/c.c", "/* prüfung der größe */ int größe;\n".encode("latin-1"))
    put(tmp_path, "d.c", b"\x7fELF\x00\x00")
    put(tmp_path, "e.c", "x" * 5000 + "\nint y;\n")
    put(tmp_path, "f.h", "not asked for\n")
    tree = read_source_tree(tmp_path, "*.c")
    texts = {d.path: d.text for d in tree.documents}
    assert texts["a.c"] == "int é;\n" and texts["b.c"] == "int ü;\n"
    assert texts["sub/c.c"] == "/* prüfung der größe */ int größe;\n"
    assert texts["e.c"] == "int y;\n" and tree.long_lines == 1
    assert tree.skipped == [("d.c", "binary (holds NUL bytes)")]
    assert tree.recoded == [("b.c", "UTF-16"), ("sub/c.c", "cp1252 (guessed)")]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"No file below .* matches '\*.c'"):
        read_source_tree(tmp_path, "*.c")
    with pytest.raises(CorpusError, match="No folder"):
        read_source_tree(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match="cannot be read"):
        read_source_tree(tmp_path, "*.c,!")


def test_a_file_of_one_long_line_is_named_with_the_limit(tmp_path: Path) -> None:
    put(tmp_path, "data.c", "x" * 5000)
    with pytest.raises(CorpusError, match=r"data\.c: every line is longer than 2000 characters"):
        read_source_tree(tmp_path, "*.c")
    put(tmp_path, "code.c", "int x;\n")
    tree = read_source_tree(tmp_path, "*.c")
    assert tree.skipped == [("data.c", "every line is longer than 2000 characters")] and tree.long_lines == 1


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*.py", ["setup.py", "src/a.py", "src/deep/b.py", "tests/t.py"]),
        ("src/**/*.py", ["src/a.py", "src/deep/b.py"]),
        ("./src/*.py", ["src/a.py"]),
        ("src/", ["src/a.py", "src/deep/b.py", "src/deep/c.rs"]),
        ("**/deep/*", ["src/deep/b.py", "src/deep/c.rs"]),
        ("*.py, !tests/", ["setup.py", "src/a.py", "src/deep/b.py"]),
        ("!*.py", ["src/deep/c.rs"]),
        ("/*.py,*.rs", ["setup.py", "src/deep/c.rs"]),
    ],
)
def test_patterns_may_name_folders(tmp_path: Path, glob: str, expected: list[str]) -> None:
    write(tmp_path, setup_dot_py="0", src__a_dot_py="1", src__deep__b_dot_py="2", src__deep__c_dot_rs="3")
    write(tmp_path, tests__t_dot_py="4")
    assert paths(tmp_path, glob) == expected


CLUTTER = {
    **{"poetry.lock": "[[package]]", "package-lock.json": "{}", "logo.svg": "<svg/>", "demo.ipynb": "{ }"},
    **{"jquery.min.js": "!0", "node_modules/x/index.js": "1", ".git/config": "[core]", "src/.venv/lib/a.py": "a"},
}


def test_clutter_is_left_out_unless_asked_for(tmp_path: Path) -> None:
    for name, text in {**CLUTTER, "src/main.py": "main"}.items():
        put(tmp_path, name, text)
    tree = read_source_tree(tmp_path, "*")
    assert [d.path for d in tree.documents] == ["src/main.py"]
    assert {reason for _, reason in tree.skipped} == {"usual clutter"}
    assert {"node_modules/", ".git/", "logo.svg"} <= {path for path, _ in tree.skipped}
    assert paths(tmp_path, "*.svg") == ["logo.svg"]
    assert paths(tmp_path, "node_modules/**/*.js,*.ipynb") == ["demo.ipynb", "node_modules/x/index.js"]
    assert set(paths(tmp_path, "*", all_files=True)) == {*CLUTTER, "src/main.py"}


GITIGNORES = {
    ".gitignore": "# built\nbuild/\n*.gen.c\n!keep.gen.c\n/only_top.c\ndocs/*.c\n\\!odd.c\n!\n",
    "lib/.gitignore": "!special.gen.c\nlocal.c\ninner/deep.c\n",
    "lib/inner/.gitignore": "*.c\n!wanted.c\n",
}
SOURCES = (
    *("a.c", "x.gen.c", "keep.gen.c", "only_top.c", "docs/a.c", "docs/sub/a.c", "!odd.c", "build/out.c"),
    *("lib/special.gen.c", "lib/y.gen.c", "lib/local.c", "lib/only_top.c", "lib/inner/deep.c", "lib/inner/wanted.c"),
    *("lib/build/keep.gen.c", "other/local.c", "private.c"),
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in SOURCES:
        put(tmp_path, name, f"/* {name} */\n")
    for name, text in GITIGNORES.items():
        put(tmp_path, name, text)
    put(tmp_path, ".git/info/exclude", "private.c\n")
    return tmp_path


@pytest.mark.parametrize("folder", ["", "lib", "lib/inner"])
def test_gitignore_is_read_as_git_reads_it(repository: Path, folder: str) -> None:
    """Also for a part of a repository, where the files above count, too."""
    command = ["git", "-C", repository / folder, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.c"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = sorted(name for name in answer.stdout.split("\0") if name)
    assert sorted(paths(repository / folder, "*.c")) == expected and expected
    assert len(paths(repository / folder, "*.c", all_files=True)) > len(expected)


def test_whoever_names_an_ignored_folder_wants_it(repository: Path) -> None:
    assert paths(repository / "build", "*.c") == ["out.c"]


def test_a_gitignore_counts_outside_repositories_too(tmp_path: Path) -> None:
    write(tmp_path, _dot_gitignore="made.c\n", made_dot_c="1", a_dot_c="2")
    tree = read_source_tree(tmp_path, "*.c")
    assert [d.path for d in tree.documents] == ["a.c"] and tree.skipped == [("made.c", "named in .gitignore")]


def test_copies_and_links_count_once(tmp_path: Path) -> None:
    write(tmp_path, a_dot_c="int same;\n", b__copy_dot_c="int same;\n", c_dot_c="int other;\n")
    (tmp_path / "link.c").symlink_to(tmp_path / "c.c")
    (tmp_path / "broken.c").symlink_to(tmp_path / "nowhere.c")
    (tmp_path / "folder").symlink_to(tmp_path / "b")
    os.link(tmp_path / "c.c", tmp_path / "hard.c")
    tree = read_source_tree(tmp_path, "*.c")
    assert [d.path for d in tree.documents] == ["a.c", "c.c"]
    reasons = dict(tree.skipped)
    assert reasons == {
        **dict.fromkeys(["link.c", "broken.c", "folder/"], "a link"),
        **dict.fromkeys(["hard.c", "b/copy.c"], "a copy of another file"),
    }


def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.c")
    put(tmp_path, "a.c", "int x;\n")
    assert read_source_tree(tmp_path, "*.c").skipped == [("pipe.c", "not a regular file")]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a_dot_c="int x;\n", secret__b_dot_c="int y;\n")
    scan = os.scandir

    def refusing(path: str) -> object:
        if Path(path).name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert read_source_tree(tmp_path, "*.c").skipped == [("secret/", "Permission denied (a folder)")]


def test_a_name_that_is_not_utf8_can_be_written(tmp_path: Path) -> None:
    for k in range(4):
        (tmp_path / os.fsdecode(b"gr\xf6\xdfe%d.c" % k)).write_text(f"int x{k};\n" * 3)
    (tmp_path / os.fsdecode(b"\xff.c")).write_bytes(b"\x00")
    tree = read_source_tree(tmp_path, "*.c")
    assert tree.documents[0].path == r"gr\xf6\xdfe0.c" and tree.skipped[0][0] == r"\xff.c"
    pairs = pairs_from_tree(tmp_path, "*.c")
    write_jsonl(tmp_path / "pairs.jsonl", [vars(pair) for pair in pairs])
    assert [row["source"] for row in read_jsonl(tmp_path / "pairs.jsonl")] == [pair.source for pair in pairs]


def test_only_long_work_shows_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    for delay, lines in ((0, 1), (60, 0)):
        assert list(progress(range(3), desc="read", unit="file", delay=delay)) == [0, 1, 2]
        assert capsys.readouterr().err.count("read: 100%") == lines


# --- held-out files ----------------------------------------------------------------------------------------


def documents(*sizes: int) -> list[Document]:
    return [Document(f"src/f{k}.c", "x" * size) for k, size in enumerate(sizes)]


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4, 0.5, 0.7, 0.9])
def test_the_held_out_share_is_of_bytes(share: float) -> None:
    sizes = [1 + 7919 * k % 3001 for k in range(200)] + [6_000, 1, 1]
    found = documents(*sizes)
    chosen, measured = hold_out(found, share)
    assert sorted(d.path for d in chosen + measured) == sorted(d.path for d in found)
    assert sum(d.n_bytes for d in measured) / sum(sizes) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("sizes", "share"), [((10_000, 10_000, 1), 0.2), ((1, 5000), 0.2), ((900, 1000), 0.7)])
def test_few_files_are_split_as_well_as_they_can_be(sizes: tuple[int, ...], share: float) -> None:
    """Never a measuring set of a byte, never nothing to choose on."""
    chosen, measured = hold_out(documents(*sizes), share)
    assert chosen and measured
    if sizes != (1, 5000):
        assert sum(d.n_bytes for d in measured) >= 0.4 * sum(sizes)


def test_nothing_is_held_out_of_one_file_and_for_a_share_of_zero() -> None:
    assert hold_out(documents(500), 0.5) == (documents(500), [])
    assert hold_out(documents(500, 600, 700), 0)[1] == []


def test_one_file_more_changes_few_places() -> None:
    found = documents(*[100] * 100)
    before, after = (
        {d.path for d in hold_out(part, 0.3)[1]} for part in (found, [Document("src/new.c", "x" * 100), *found])
    )
    assert len(before ^ after) <= 3


# --- bytes to text -----------------------------------------------------------------------------------------

GERMAN = "/* Größe der Änderung, für Prüfungen überall */\n"
CHINESE = "/* 这个函数返回最大值 */ int max(int a, int b);\n"
POLISH = "Zwraca największą wartość z tablicy. Funkcja obliczająca średnią odległość między punktami.\n"


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        (b"int x;\n", "int x;\n", "UTF-8"),
        (b"\xef\xbb\xbfint x;\n", "int x;\n", "UTF-8"),
        ("Größe".encode(), "Größe", "UTF-8"),
        (CHINESE.encode("utf-32"), CHINESE, "UTF-32"),
        ("Größe".encode("latin-1"), "Größe", "cp1252 (guessed)"),
        ("5 µs".encode("latin-1"), "5 µs", "cp1252 (guessed)"),
        ("it’s “quoted” – text".encode("cp1252"), "it’s “quoted” – text", "cp1252 (guessed)"),
        (b"/* Copyright \xa9 Jos\xe9 */\n" + b"int x;\n" * 50, None, "cp1252 (guessed)"),
        (GERMAN.encode() * 3 + b"\xe4\n", GERMAN * 3 + "\ufffd\n", "UTF-8, broken at 1 place"),
        (b"\xff" + CHINESE.encode() + b"\xfe", "\ufffd" + CHINESE + "\ufffd", "UTF-8, broken at 2 places"),
        (CHINESE.encode()[:14], CHINESE[:6] + "\ufffd", "UTF-8, broken at 1 place"),
        (CHINESE.encode("gb18030") * 3, CHINESE * 3, "gb18030 (guessed)"),
        ("/* Функция сортировки */\n".encode("koi8-r") * 3, "/* Функция сортировки */\n" * 3, "koi8_r (guessed)"),
        ("テスト".encode("shift_jis"), "テスト", "cp932 (guessed)"),
        (POLISH.encode("cp1250") * 3, POLISH * 3, "cp1250 (guessed)"),
    ],
)
def test_bytes_become_text(data: bytes, text: str | None, encoding: str) -> None:
    found, name = decode(data)
    assert name == encoding
    if text is not None:
        assert found == text


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"a\x00b", "NUL"), (b"\xff\xfea\x00b", "the mark of UTF-16, but byte"), (bytes(range(128, 256)), "recognised")],
)
def test_what_is_no_text_is_said(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(data)


def test_no_pattern_of_clutter_is_invalid() -> None:
    assert len(source_tree.GitIgnoreSpec.from_lines(source_tree.CLUTTER)) == len(set(source_tree.CLUTTER))
