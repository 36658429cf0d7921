"""A report split and a sweep split for C headers: texts of packages of which no other split holds a file.

The test bed groups headers by file, so that one package may stand in two of its splits. `prepare_packages` adds
`packages.npz` (to report) or `packages_sweep.npz` (to choose by) to a setting that is there, and changes nothing else
in it. Its texts come from unpacked Debian packages, a folder each in FOLDER, with the fields of the package in
`DEBIAN/control`:

    apt-get download libgsl-dev
    dpkg-deb -R libgsl-dev_*.deb FOLDER/libgsl-dev

No source package, top folder or file name of the bed's own headers may stand there twice, and none of the packages
that the other of both splits is made of, where that is there. Packages take turns, and a text is taken if it holds a
new token and shares at most 3 % of its passages (30 original tokens in a row) with the examples of training and of the
splits in `SPLITS`, the whole text that training was cut from, and the texts taken before it.

Shapes: E examples, To original ids of one, P passages.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bench_parts import known_json
from domain_texts import Text, documents, read_texts, split_texts
from recipe_data import OF_PACKAGES, SETTINGS, extend_again, pack, read_examples

from vocabx_utils import files, models
from vocabx_utils.training.examples import AlignedExample, AlignedSet, whole_texts
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.encoding import encode_each
from vocabx_utils.vocabulary.tokens import Extension

PASSAGE = 30  # original tokens in a row
MOST_SHARED = 0.03  # of a text's passages: two lines; a licence is many
_OF_A_FILE = 3  # texts, at most: no file speaks for its package
_MULTIARCH = "x86_64-linux-gnu"
_SETS = ("setting.json", "snippets.npz", "texts.npz", "sweep.npz", "report.npz")
_FACTOR, _STEP = np.uint64(6364136223846793005), np.uint64(1442695040888963407)


class Split(NamedTuple):
    """A split of packages: sets that it shares next to no passage with, and those that are described with it."""

    apart: tuple[str, ...]
    described: tuple[str, ...]


_REPORT, _SWEEP = OF_PACKAGES["report"], OF_PACKAGES["sweep"]
SPLITS = {
    _REPORT: Split(("sweep", _SWEEP), ("report", _REPORT)),
    _SWEEP: Split(("sweep", "report", _REPORT), ("sweep", _SWEEP)),
}


class Package(NamedTuple):
    """An unpacked Debian package."""

    name: str
    version: str
    source: str
    folder: Path


# --- passages that texts share --------------------------------------------------------------------------------------


def passages(ids: Any) -> np.ndarray:
    """(P,) hashes of 64 bits of the passages in (To,) ids: every 30 in a row; none where there are fewer."""
    ids = np.asarray(ids).astype(np.uint64)
    count = max(0, len(ids) - PASSAGE + 1)
    found = np.zeros(count, np.uint64)
    for place in range(PASSAGE):
        found = found * _FACTOR + ids[place : place + count] + _STEP
    return found


def all_passages(rows: Any) -> np.ndarray:
    """Hashes of the passages of many texts, each once and in order."""
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *map(passages, rows)]))


def shared(rows: Sequence[Any], known: np.ndarray) -> float:
    """Share of all passages of some texts that stand in `known` (ordered), each counted as often as it stands there."""
    own = np.concatenate([np.zeros(0, np.uint64), *map(passages, rows)])
    return float(_among(own, known).mean()) if len(own) else 0.0


def _among(own: np.ndarray, known: np.ndarray) -> np.ndarray:
    if not len(known):
        return np.zeros(len(own), bool)
    place = np.minimum(np.searchsorted(known, own), len(known) - 1)
    return known[place] == own


def describe_splits(
    folder: Path, split: str = _REPORT, more: Mapping[str, np.ndarray] | None = None
) -> dict[str, dict[str, Any]]:
    """Describe a split of packages and the one of the bed that it stands beside, and what they share with other texts.

    Args:
        folder: that of the setting.
        more: passages of further texts by name, ordered.

    Returns:
        By split the numbers of texts, of original tokens, of new tokens in them and of those that stand there at all,
        and `shared`: percent of its passages in `training` (all examples that runs draw from), in the other sets that
        it is kept apart from, by name, and in `more`.
    """
    drawn = _originals(read_examples(folder, "snippets")) + _originals(read_examples(folder, "texts"))
    others = {"training": all_passages(drawn), **_apart(folder, split), **(more or {})}
    found = {}
    for name in (name for name in SPLITS[split].described if (folder / f"{name}.npz").exists()):
        examples = read_examples(folder, name)
        rows, counts = _originals(examples), examples.counts()
        found[name] = {
            "texts": len(rows), "tokens": sum(map(len, rows)), "new_tokens": int(counts.sum()),
            "new_tokens_there": int((counts > 0).sum()),
            "texts_without": sum(bool((e.ids < examples.vocab_size).all()) for e in examples.examples),
            "shared": {
                other: round(100 * shared(rows, known), 2) for other, known in others.items() if other != name
            },
        }  # fmt: skip
    return found


def _apart(folder: Path, split: str) -> dict[str, np.ndarray]:
    """Passages of the sets that a split of packages is kept apart from, by name; only sets that are there."""
    names = [name for name in SPLITS[split].apart if (folder / f"{name}.npz").exists()]
    return {name: all_passages(_originals(read_examples(folder, name))) for name in names}


def _originals(examples: AlignedSet) -> list[np.ndarray]:
    return [example.original_ids for example in examples.examples]


# --- packages -------------------------------------------------------------------------------------------------------


def read_packages(folder: Path) -> list[Package]:
    """Read the unpacked packages of a folder, by name; SystemExit where there is none."""
    found = []
    for path in sorted(folder.glob("*/DEBIAN/control")):
        fields = dict(line.split(": ", 1) for line in path.read_text("utf-8").splitlines() if ": " in line[1:])
        source = fields.get("Source", fields["Package"]).split(" ")[0]
        found.append(Package(fields["Package"], fields["Version"], source, path.parents[1]))
    if not found:
        raise SystemExit(f"{folder}: no folder with DEBIAN/control: unpack packages there with `dpkg-deb -R`")
    return sorted(found)


def origins(root: Path) -> list[str]:
    """Source packages that own the headers below a folder; none where dpkg is not there or knows of none."""
    paths = [str(path) for path in root.rglob("*.h")]
    if not paths or shutil.which("dpkg-query") is None:
        return []
    owned = subprocess.run(["dpkg-query", "-S", *paths], capture_output=True, text=True, check=False).stdout
    names = {name for line in owned.splitlines() for name in line.rsplit(": ", 1)[0].split(", ")}
    if not names:
        return []
    told = subprocess.run(
        ["dpkg-query", "-W", "-f", "${source:Package}\n", *sorted(names)], capture_output=True, text=True, check=False
    )
    return sorted(set(told.stdout.split()))


def check_apart(packages: Sequence[Package], root: Path, sources: Sequence[str], tops: set[str]) -> None:
    """Refuse packages whose source package or top folder holds headers of another split (SystemExit names them).

    Args:
        root: where these headers are.
        sources: their source packages.
        tops: their top folders.
    """
    for package in packages:
        own = top_folders(package.folder)
        if package.source in sources or own & tops:
            told = f"source package {package.source}" if package.source in sources else f"{sorted(own & tops)}"
            raise SystemExit(f"{package.name}: {told} also holds headers below {root}: leave the package out")


def top_folders(root: Path) -> set[str]:
    """Top folders of the headers below a folder, as an `#include` sees them."""
    found = {parts[0] for path in root.rglob("*.h") if len(parts := _parts(path, root)) > 1}
    return found - {"usr"}  # of headers outside of usr/include, which may be of any package


def check_beside(options: argparse.Namespace, packages: Sequence[Package]) -> set[str]:
    """Refuse packages that the other of both splits is made of as well, and return the names of its headers.

    Raises:
        SystemExit: a package stands in both; or the folder of the other split's packages is not given, or lacks some.
    """
    other = next(name for name in SPLITS if name != options.split)
    there = (options.data / options.setting / f"{other}.npz").exists()
    if there != (options.beside is not None):
        told = "is there: name the folder of its packages with" if there else "is not there: leave out"
        raise SystemExit(f"{options.setting}: {other}.npz {told} --beside")
    if not there:
        return set()
    held = read_packages(options.beside)
    wanted = {(p["name"], p["version"]) for p in check_texts(options, other)["packages"]}
    if lacking := sorted(name for name, _ in wanted - {(p.name, p.version) for p in held}):
        raise SystemExit(f"{options.beside} lacks packages that {other}.npz holds texts of: {', '.join(lacking)}")
    tops = {top for package in held for top in top_folders(package.folder)}
    check_apart(packages, options.beside, [package.source for package in held], tops)
    return {path.name for path in options.beside.rglob("*.h")}


def _parts(path: Path, root: Path) -> tuple[str, ...]:
    """Folders and name of a header as an `#include` sees them."""
    parts = path.relative_to(root).parts
    for prefix in (("usr", "include"), (_MULTIARCH,)):
        parts = parts[len(prefix) :] if parts[: len(prefix)] == prefix else parts
    return parts


def candidates(package: Package, names: set[str], characters: int) -> Iterator[str]:
    """Yield texts of a package in an order by hash, a few of each file; files of one of `names` are left out."""
    found = []
    for text in read_texts("headers", package.folder):
        if Path(text.group).name not in names:
            parts = sorted(documents([text.text], characters), key=_digest)[:_OF_A_FILE]
            found += [(turn, _digest(part), part) for turn, part in enumerate(parts)]
    yield from dict.fromkeys(part for _, _, part in sorted(found))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- choosing texts -------------------------------------------------------------------------------------------------


class Chosen(NamedTuple):
    """Texts of the split, and what became of the others that were looked at."""

    examples: AlignedSet
    of_package: dict[str, int]
    left_out: dict[str, int]


def choose_texts(offered: Mapping[str, Iterator[str]], extension: Extension, known: np.ndarray, limit: int) -> Chosen:
    """Take texts of the packages in turns, up to a limit.

    Args:
        offered: texts by package.
        known: ordered passages of which a text may share `MOST_SHARED` of its own.
    """
    taken: list[AlignedExample] = []
    of_package, left_out = dict.fromkeys(offered, 0), {"without a new token": 0, "shared": 0}
    waiting, own = dict(offered), np.zeros(0, np.uint64)
    while waiting and len(taken) < limit:
        turn = {name: text for name, texts in waiting.items() if (text := next(texts, None)) is not None}
        waiting = {name: waiting[name] for name in turn}
        for name, text in turn.items():
            found = whole_texts(align_texts(extension, [text]), extension.V, extension.N, max_length=1024).examples
            if len(taken) == limit or not found:
                continue
            if (found[0].ids < extension.V).all():
                left_out["without a new token"] += 1
                continue
            mine = passages(found[0].original_ids)
            if len(mine) and (_among(mine, known) | _among(mine, own)).mean() > MOST_SHARED:
                left_out["shared"] += 1
                continue
            taken.append(found[0])
            of_package[name] += 1
            own = np.union1d(own, mine)
    return Chosen(AlignedSet(tuple(taken), vocab_size=extension.V, n_new=extension.N), of_package, left_out)


def _bed_texts(kind: str, root: Path | None, content: Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """The texts that the bed's training examples were cut from, and the names of all headers of their folder."""
    texts: list[Text] = read_texts(kind, root)
    half = content["training_bytes"] // 2
    splits = split_texts(texts, {"tokenizer": half, "train": half})
    return splits["tokenizer"] + splits["train"], {Path(text.group).name for text in texts}


def prepare_packages(options: argparse.Namespace) -> None:
    """Add a split to a setting of headers, and write which packages it holds and what it shares with other texts."""
    began = time.perf_counter()
    kind, folder = SETTINGS[options.setting], options.data / options.setting
    if kind != "headers":
        raise SystemExit(f"{options.setting}: its splits share no package already; this split is for headers")
    root = options.root or Path("/usr/include")
    content, before = files.read_json(folder / "setting.json"), checksums(folder, but=options.split)
    extension = extend_again(content, models.load_tokenizer(options.model))
    packages, sources = read_packages(options.packages), origins(root)
    check_apart(packages, root, sources, top_folders(root))
    held = check_beside(options, packages)
    texts, names = _bed_texts(kind, root, content)
    whole = all_passages(encode_each(extension.original, documents(texts, options.characters)))
    print(f"{len(whole):,} passages of training text, {time.perf_counter() - began:.0f} s", flush=True)
    read = all_passages([row for name in ("snippets", "texts") for row in _originals(read_examples(folder, name))])
    if len(read) and _among(read, whole).mean() < 0.99:  # a few cross the places where documents were cut
        raise SystemExit(f"{root} is not what {folder} was made from: its training examples do not stand there")
    known = np.unique(np.concatenate([whole, read, *_apart(folder, options.split).values()]))
    offered = {package.name: candidates(package, names | held, options.characters) for package in packages}
    chosen = choose_texts(offered, extension, known, options.judged)
    np.savez_compressed(folder / f"{options.split}.npz", **pack(chosen.examples))
    if checksums(folder, but=options.split) != before:
        raise SystemExit(f"{folder}: another split changed meanwhile; make the setting again")
    _record(options, [p for p in packages if chosen.of_package[p.name]], sources, chosen, {"training_text": whole})
    told = f"{len(chosen.examples)} texts, {chosen.examples.counts().sum():,} new tokens"
    print(f"{options.setting}: {told}, left out {chosen.left_out}, {time.perf_counter() - began:.0f} s", flush=True)


def checksums(folder: Path, but: str = "") -> dict[str, str]:
    """SHA-256 of what `prepare` wrote for a setting, and of the splits of packages that are there, but for one."""
    of_packages = [f"{split}.npz" for split in SPLITS if split != but and (folder / f"{split}.npz").exists()]
    return {name: files.file_digest(folder / name) for name in (*_SETS, *of_packages)}


def _record(
    options: argparse.Namespace, packages: Sequence[Package], sources: list[str], chosen: Chosen,
    more: Mapping[str, np.ndarray],
) -> None:  # fmt: skip
    """Write RESULTS/texts.json: this split's and setting's part, and shares of every setting that is there.

    The report split's part is the file itself, that of the sweep split is in it under its name.
    """
    path, folder = options.results / "texts.json", options.data / options.setting
    content = known_json(path) or {"settings": {}, "splits": {}}
    part = content if options.split == _REPORT else content.setdefault(options.split, {"settings": {}, "splits": {}})
    part |= {"passage": PASSAGE, "most_shared": MOST_SHARED, "sources_of_the_bed": sources}
    part["settings"][options.setting] = {
        "date": datetime.date.today().isoformat(), "left_out": chosen.left_out,
        "packages": [
            {**{key: getattr(p, key) for key in ("name", "version", "source")}, "texts": chosen.of_package[p.name]}
            for p in packages
        ],
        "sha256": checksums(folder),
    }  # fmt: skip
    for setting in (name for name in SETTINGS if (options.data / name / "report.npz").exists()):
        if setting == options.setting:
            part["splits"][setting] = describe_splits(options.data / setting, options.split, more)
        elif setting not in part["splits"]:
            part["splits"][setting] = describe_splits(options.data / setting, options.split)
    files.write_json(path, content)
    print(f"{path}: {part['splits'][options.setting]}", flush=True)


def check_texts(options: argparse.Namespace, split: str) -> dict[str, Any]:
    """Return what RESULTS/texts.json tells of a setting's split; SystemExit where its files are others."""
    path, folder = options.results / "texts.json", options.data / options.setting
    content = known_json(path)
    part = content if split == _REPORT else content.get(split, {})
    told: dict[str, Any] | None = part.get("settings", {}).get(options.setting)
    if told is None:
        command = f"recipes.py prepare-packages --split {split} --setting {options.setting}"
        raise SystemExit(f"{path}: nothing on {options.setting} and {split}: {command}")
    for name, digest in told["sha256"].items():
        if not (folder / name).exists() or files.file_digest(folder / name) != digest:
            raise SystemExit(f"{folder / name} is not the file that {path} tells of: prepare the split again")
    return told
