"""The text files of a folder tree: which are read, which are left out and why, and how their bytes became text.

Patterns are written as in `.gitignore` files everywhere: for what to read, what to ignore, and what is clutter.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from charset_normalizer import from_bytes
from pathspec import GitIgnoreSpec, PathSpec

from vocabx_utils.files import hash_bytes
from vocabx_utils.progress import progress

# What stands in source trees without being written by hand for this project.
CLUTTER = (
    *(".git/", ".hg/", ".svn/", ".venv/", "venv/", "__pycache__/", ".tox/", ".nox/", ".eggs/", "*.egg-info/"),
    *(".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".ipynb_checkpoints/", ".idea/", ".vscode/"),
    *("node_modules/", "bower_components/", ".yarn/", ".gradle/", ".terraform/"),
    *("*.lock", "*-lock.json", "*-lock.yaml", "npm-shrinkwrap.json", "go.sum"),
    *("*.svg", "*.ipynb", "*.min.js", "*.min.css", "*.min.mjs", "*.map", "*.pyc"),
    *("*.png", "*.jpg", "*.jpeg", "*.gif", "*.ico", "*.webp", "*.pdf", "*.ps", "*.eps", "*.ttf", "*.woff", "*.woff2"),
    *("*.zip", "*.gz", "*.bz2", "*.xz", "*.zst", "*.7z", "*.jar", "*.whl", "*.so", "*.dll", "*.exe", "*.o", "*.a"),
)
UTF8 = "UTF-8"
_LONGEST_LINE = 2_000  # characters


class CorpusError(ValueError):
    """Data is missing, empty or malformed; the message names file and line."""


@dataclass(frozen=True)
class Document:
    """A file of a source tree."""

    path: str  # relative to the tree; bytes of the name that are not UTF-8 are written as `\\xff`
    text: str  # what it holds
    encoding: str = UTF8  # how its bytes were read, and what had to be guessed or replaced

    @property
    def n_bytes(self) -> int:
        """Size of the text in UTF-8."""
        return len(self.text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class SourceTree:
    """What was read from a source tree, and what was not."""

    documents: list[Document]  # files read, folder by folder in order of name
    # (path, reason) of each file and folder left out; a folder's path ends in `/`
    skipped: list[tuple[str, str]] = field(default_factory=list)
    long_lines: int = 0  # number of lines dropped because they were too long to be written by hand

    @property
    def recoded(self) -> list[tuple[str, str]]:
        """(path, encoding) of each file that was not plain UTF-8."""
        return [(d.path, d.encoding) for d in self.documents if d.encoding != UTF8]


def read_source_tree(
    folder: str | Path,
    glob: str = "*.py",
    *,
    all_files: bool = False,
    max_bytes: int = 4_000_000,
) -> SourceTree:
    """Read the text files of a folder tree.

    Left out are what `.gitignore` files name, usual clutter (`CLUTTER`; a pattern that names a kind of it, such as
    `*.svg`, asks for that kind), links, copies of a file that was read before, files that are not text, and what
    cannot be read. How bytes become text is said at `decode`.

    Args:
        glob: which files, written as in a `.gitignore` file, several separated by commas; later ones win.
            `*.c` is any such file, `src/**/*.py` those below one folder, `!tests/` leaves a folder out.
        all_files: read what `.gitignore` names, and clutter, too.
        max_bytes: larger files are left out; so are lines of more than 2,000 characters (minified code, data tables).

    Raises:
        CorpusError: no such folder, a pattern that cannot be read, or no matching file could be read.
    """
    root = Path(folder)
    if not root.is_dir():
        what = "is a file" if root.is_file() else "does not exist"
        raise CorpusError(f"No folder {_show(root)}: it {what}. Give the folder that holds the texts.")
    tree = SourceTree([])
    long_lines = 0
    seen: set[str] = set()
    for path in progress(_matching_files(root, glob, all_files, tree.skipped), desc="read", unit="file", delay=10):
        relative = _show(path.relative_to(root))
        try:
            text, encoding = decode(_read_bytes(path, max_bytes))
        except (OSError, ValueError) as error:
            tree.skipped.append((relative, getattr(error, "strerror", None) or str(error)))
            continue
        lines = text.splitlines(keepends=True)
        kept = "".join(line for line in lines if len(line) <= _LONGEST_LINE)
        long_lines += sum(len(line) > _LONGEST_LINE for line in lines)
        digest = hash_bytes([kept.encode("utf-8", "surrogatepass")])
        if lines and not kept:
            tree.skipped.append((relative, f"every line is longer than {_LONGEST_LINE} characters"))
        elif digest in seen:
            tree.skipped.append((relative, "a copy of another file"))
        elif kept:
            seen.add(digest)
            tree.documents.append(Document(relative, kept, encoding))
    if not tree.documents:
        raise CorpusError(_nothing_read(root, glob, tree.skipped))
    return SourceTree(tree.documents, tree.skipped, long_lines)


def hold_out(documents: Sequence[Document], share: float) -> tuple[list[Document], list[Document]]:
    """Split files into those to choose on and those to measure on, both in the order given.

    Files are drawn by a hash of their path, so that one file more or less changes little, as long as they fit into
    the share of the bytes. If that leaves less than half of it, the smallest other file is added. Nothing is held out
    for a share of 0 and of a single file.
    """
    sizes = [document.n_bytes for document in documents]
    target, held = share * sum(sizes), set[int]()
    for k in sorted(range(len(sizes)), key=lambda k: hash_bytes([documents[k].path.encode()])):
        if sum(sizes[j] for j in held) + sizes[k] <= target:
            held.add(k)
    rest = [k for k in range(len(sizes)) if k not in held]
    if sum(sizes[j] for j in held) < target / 2 and len(rest) > 1:
        held.add(min(rest, key=lambda k: sizes[k]))
    parts = [[d for k, d in enumerate(documents) if (k in held) == measured] for measured in (False, True)]
    return parts[0], parts[1]


def _nothing_read(root: Path, glob: str, skipped: list[tuple[str, str]]) -> str:
    if not skipped:
        return f"No file below {_show(root)} matches {glob!r}, or those that do are empty."
    listed = "; ".join(f"{path}: {reason}" for path, reason in skipped[:3])
    more = f"; and {len(skipped) - 3} more" if len(skipped) > 3 else ""
    return f"No file below {_show(root)} that matches {glob!r} can be read. Left out: {listed}{more}."


def _show(path: Path) -> str:
    """A path as text that can be written: names on Linux are bytes, and need not be UTF-8."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


# --- which files -------------------------------------------------------------------------------------------


def _matching_files(root: Path, glob: str, all_files: bool, skipped: list[tuple[str, str]]) -> Iterator[Path]:
    """Regular files that match and are not ignored; what is left out on the way goes to `skipped`."""
    patterns = [p.strip().removeprefix("./") for p in glob.split(",") if p.strip()]
    if all(p.startswith("!") for p in patterns):
        patterns.insert(0, "*")
    try:
        asked = PathSpec.from_lines("gitignore", patterns)
    except ValueError as error:
        raise CorpusError(f"The pattern {glob!r} cannot be read: {error}") from error
    parts = {part for p in patterns for part in p.split("/")}
    clutter = GitIgnoreSpec.from_lines(
        c for c in CLUTTER if not any(fnmatch.fnmatch(part, c.rstrip("/")) for part in parts)
    )
    ignores = _Ignores(root)

    def why_not(path: Path, name: str) -> str | None:
        if path.is_symlink():
            return "a link"
        if all_files:
            return None
        if clutter.match_file(name):
            return "usual clutter"
        return "named in .gitignore" if ignores.ignored(name) else None

    def unreadable(error: OSError) -> None:
        skipped.append((f"{_show(Path(error.filename).relative_to(root))}/", f"{error.strerror} (a folder)"))

    for parent, folders, names in os.walk(root, onerror=unreadable):
        here = Path(parent)
        base = "" if here == root else f"{here.relative_to(root).as_posix()}/"
        if not all_files:
            ignores.enter(base)
        walked = []
        for name in sorted(folders):
            if reason := why_not(here / name, f"{base}{name}/"):
                skipped.append((f"{_show(Path(base + name))}/", reason))
            else:
                walked.append(name)
        folders[:] = walked
        for name in sorted(names):
            if asked.match_file(base + name):
                if reason := why_not(here / name, base + name):
                    skipped.append((_show(Path(base + name)), reason))
                else:
                    yield here / name


class _Ignores:
    """The `.gitignore` files of a tree, those above it in the same repository included; the innermost decides."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        above = [self.root, *self.root.parents]
        top = next((folder for folder in above if (folder / ".git").exists()), self.root)
        self.up = "".join(f"{part}/" for part in self.root.relative_to(top).parts)
        self.rules: list[tuple[str, GitIgnoreSpec]] = []  # folder (from the top, with `/`) and its patterns
        self._load("", top / ".git" / "info" / "exclude")
        for folder in reversed(self.root.parents):
            if folder == top or top in folder.parents:
                self._load("".join(f"{part}/" for part in folder.relative_to(top).parts), folder / ".gitignore")
        if self._verdict(self.up):
            self.rules = []  # the tree itself is ignored there, so whoever names it wants it

    def enter(self, base: str) -> None:
        """Take up the rules of a folder (relative to the root, with `/`), and drop those of folders left behind."""
        self.rules = [rule for rule in self.rules if (self.up + base).startswith(rule[0])]
        self._load(self.up + base, self.root / base / ".gitignore")

    def ignored(self, name: str) -> bool:
        """Tell whether a path relative to the root (a folder's with `/`) is ignored."""
        return self._verdict(self.up + name)

    def _load(self, folder: str, file: Path) -> None:
        if file.is_file():
            try:
                lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
                self.rules.append((folder, GitIgnoreSpec.from_lines(_valid(lines))))
            except OSError:  # what cannot be read forbids nothing
                return

    def _verdict(self, path: str) -> bool:
        for folder, spec in reversed(self.rules):
            if path != folder and (verdict := spec.check_file(path.removeprefix(folder)).include) is not None:
                return verdict
        return False


def _valid(lines: list[str]) -> Iterator[str]:
    """Lines that are patterns; git passes over the others, too."""
    for line in lines:
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue
        yield line


# --- bytes to text -----------------------------------------------------------------------------------------

_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
# Without a mark no source file is UTF-16 or EBCDIC, which short files look like to a detector.
_UNLIKELY = ["utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "utf_7"]
_UNLIKELY += ["cp037", "cp273", "cp424", "cp500", "cp875", "cp1026", "cp1140"]


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its other end
        raise ValueError("not a regular file")
    if status.st_size > max_bytes:
        raise ValueError(f"larger than {max_bytes} bytes")
    return path.read_bytes()


def decode(data: bytes) -> tuple[str, str]:
    """Read bytes as text.

    In this order: a byte-order mark, UTF-8, UTF-8 with broken bytes replaced if they are fewer than its whole
    characters beyond ASCII, cp1252 (or cp1250 if that gives a known language) where such bytes stand alone among
    ASCII letters as in Western text, and what charset-normalizer detects. Returned are the text and the encoding,
    `UTF-8` alone where nothing was guessed. ValueError for bytes that hold NUL, are not what their mark says, or are in
    no encoding that was recognised.
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            try:
                return data.decode(name), name
            except UnicodeDecodeError as error:
                raise ValueError(f"begins with the mark of {name}, but byte {error.start} is not") from error
    if b"\x00" in data:
        raise ValueError("binary (holds NUL bytes)")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode("utf-8"), UTF8
    except UnicodeDecodeError:
        return _mostly_utf8(data) or _western(data) or _detected(data)


def _mostly_utf8(data: bytes) -> tuple[str, str] | None:
    whole = sum(c > "\x7f" for c in data.decode("utf-8", "ignore"))
    text = data.decode("utf-8", "replace")
    broken = sum(c > "\x7f" for c in text) - whole
    return (text, f"{UTF8}, broken at {broken} place{'s' * (broken > 1)}") if broken < whole else None


def _western(data: bytes) -> tuple[str, str] | None:
    runs = re.findall(rb"[\x80-\xff]+", data)
    if sum(map(len, runs)) > 2 * len(runs):
        return None
    found = [from_bytes(data, cp_isolation=[name]).best() for name in ("cp1252", "cp1250")]
    best = max((match for match in found if match is not None), key=lambda match: match.coherence, default=None)
    return (str(best), f"{best.encoding} (guessed)") if best is not None else None


def _detected(data: bytes) -> tuple[str, str]:
    best = from_bytes(data, cp_exclusion=_UNLIKELY).best()
    if best is None:
        raise ValueError("its encoding was not recognised")
    return str(best), f"{best.encoding} (guessed)"
