"""Texts of four domains, grouped so that no group stands in two splits; nothing of them is committed.

    python     source of the packages that are installed here; a group is a package
    headers    C headers below /usr/include; a group is a file
    german     manual pages of Debian's package manpages-de, rendered by groff; a group is a page
    swedish    Swedish manual pages of manpages-sv, dpkg, man-db and other packages, likewise

Debian's package of Swedish pages alone holds half a megabyte, so that `swedish` reads those of other packages too.

`documents` cuts a text at line ends into parts that a model reads at once.
"""

from __future__ import annotations

import hashlib
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

KINDS = ("python", "headers", "german", "swedish")
_PAGES = {"german": ("de", "manpages-de"), "swedish": ("sv", "manpages-sv")}  # language, and a package with pages
_SHARES = {"tokenizer": 0.4, "train": 0.4, "validation": 0.1, "report": 0.1}
_PACKAGE_BYTES = 2_000_000  # of one package: no package speaks for all


class Text(NamedTuple):
    """A file's text and its group."""

    group: str
    text: str


def read_texts(kind: str, root: Path | None = None) -> list[Text]:
    """Read a domain, in an order that does not depend on the disk; texts that stand there twice are read once.

    Args:
        root: another folder than the usual one; for `german` and `swedish` that of unpacked packages, which have none.

    Raises:
        SystemExit: a package of manual pages is wanted, and no folder of it is given.
    """
    if kind in _PAGES:
        language, package = _PAGES[kind]
        if root is None:
            raise SystemExit(f"{kind} needs --root: the folder that `dpkg-deb -x {package}_*.deb FOLDER` made")
        found_texts = _manual_pages(root, language)
    else:
        found_texts = {"python": _python, "headers": _headers}[kind](root)
    seen: set[str] = set()
    found = []
    for text in found_texts:
        digest = _digest(text.text)
        if text.text.strip() and digest not in seen:
            seen.add(digest)
            found.append(text)
    return found


def split_texts(texts: Iterable[Text], limits: Mapping[str, int], seed: int = 0) -> dict[str, list[str]]:
    """Share groups out to splits by a hash, and take texts of each up to so many bytes."""
    splits: dict[str, list[Text]] = {name: [] for name in _SHARES}
    for text in texts:
        place = int(_digest(f"{seed}:{text.group}")[:8], 16) / 16**8
        for name, share in _SHARES.items():
            place -= share
            if place < 0:
                splits[name].append(text)
                break
    chosen = {}
    for name, limit in limits.items():
        chosen[name], size, of_group = [], 0, dict[str, int]()
        for text in sorted(splits[name], key=lambda t: _digest(f"{seed}:{t.text}")):
            n_bytes = len(text.text.encode())
            if size >= limit:
                break
            if of_group.get(text.group, 0) + n_bytes > max(_PACKAGE_BYTES, n_bytes):
                continue
            of_group[text.group] = of_group.get(text.group, 0) + n_bytes
            size += n_bytes
            chosen[name].append(text.text)
    return chosen


def documents(texts: Sequence[str], characters: int = 3000, limit: int | None = None) -> list[str]:
    """Cut texts at line ends into documents of about so many characters."""
    found: list[str] = []
    for text in texts:
        part = ""
        for line in text.splitlines(keepends=True):
            if part and len(part) + len(line) > characters:
                found.append(part)
                part = ""
            part += line[:characters]
        if len(part) > characters // 10:
            found.append(part)
        if limit is not None and len(found) >= limit:
            return found[:limit]
    return found


def _python(root: Path | None) -> Iterator[Text]:
    root = root or Path(sysconfig.get_paths()["purelib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if len(parts) > 1 and not parts[0].startswith("vocabx"):
            yield from _read(path, parts[0])


def _headers(root: Path | None) -> Iterator[Text]:
    root = root or Path("/usr/include")
    for path in sorted(root.rglob("*.h")):
        yield from _read(path, str(path.relative_to(root)))


def _read(path: Path, group: str) -> Iterator[Text]:
    try:
        if path.stat().st_size < 200_000:  # larger ones are tables
            yield Text(group, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return


def _manual_pages(root: Path, language: str) -> Iterator[Text]:
    paths = sorted(path for path in root.rglob("*.gz") if f"/man/{language}/" in path.as_posix())
    with ThreadPoolExecutor(2) as pool:
        for path, text in zip(paths, pool.map(_rendered, paths), strict=True):
            yield Text(path.name, text)


def _rendered(path: Path) -> str:
    """Return a manual page as plain text of 100 columns, without overstriking, hyphens and justification."""
    command = f"zcat {path} | groff -k -Dutf-8 -man -Tutf8 -P-c -P-b -P-u -rLL=100n -dAD=l -rHY=0 2>/dev/null"
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False).stdout


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
