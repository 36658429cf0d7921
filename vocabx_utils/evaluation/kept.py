"""Kept lists: the problems whose reference solution passes, why the others are dropped, and where that was found.

The lists of the package lie in `kept/`; scoring counts their problems only, and execution takes its time limits and
its exceptions from strict mode from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocabx_utils.evaluation.benchmarks import INFO, Problem, load_benchmark, one_benchmark
from vocabx_utils.evaluation.environments import RECIPES, Environment
from vocabx_utils.files import read_json, write_json

KEPT_FOLDER = Path(__file__).parent / "kept"
_PARTS = ("dropped", "timeouts", "not_strict", "environment")
_NAMED = 5  # packages that a message spells out


@dataclass(frozen=True)
class KeptList:
    """Problems whose reference passes, in the order of the benchmark, and why the others do not."""

    benchmark: str
    kept: tuple[str, ...]  # ids
    dropped: Mapping[str, str]  # id to reason
    timeouts: Mapping[str, float]  # id to seconds, where five times the reference is more than the usual limit
    not_strict: Mapping[str, str]  # id to reason: passes, but not in strict mode (no plain data)
    environment: Mapping[str, Any]  # interpreter and packages, and the sandbox
    seconds: tuple[float, ...] = ()  # wall time of each of the passes over all references

    @classmethod
    def read(cls, benchmark: str) -> KeptList | None:
        """Read the package's list, None where it has none (`vocabx eval verify-references` writes one)."""
        file = KEPT_FOLDER / f"{benchmark}.json"
        if not file.is_file():
            return None
        content = read_json(file)
        return cls(benchmark, tuple(content["kept"]), **{name: content.get(name, {}) for name in _PARTS})

    def write(self, folder: str | Path) -> Path:
        """Write `<benchmark>.json` into a folder; return its path."""
        path = Path(folder) / f"{self.benchmark}.json"
        size = {"n_kept": len(self.kept), "n_total": len(self.kept) + len(self.dropped), "kept": list(self.kept)}
        parts = {name: dict(getattr(self, name)) for name in _PARTS}
        write_json(path, {"benchmark": self.benchmark, **size, **parts})
        return path

    def compare(self, other: KeptList) -> list[str]:
        """List the problems on which another list, that of the package, does not agree, one line each."""
        ours, theirs = self.dropped, other.dropped
        newly = [f"{name} is dropped ({ours[name]}), the list keeps it" for name in ours if name not in theirs]
        again = [f"{name} passes, the list drops it ({theirs[name]})" for name in self.kept if name in theirs]
        return newly + again


def kept_ids(benchmarks: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the ids of the kept problems of each benchmark that has a list."""
    lists = {name: KeptList.read(name) for name in benchmarks}
    return {name: frozenset(found.kept) for name, found in lists.items() if found}


def kept_problems(benchmark: str) -> list[Problem]:
    """Read the kept problems of a benchmark; a `ValueError` where it has no list."""
    kept = kept_ids([benchmark])
    if not kept:
        raise ValueError(f"no kept list of {benchmark}: run `vocabx eval verify-references {benchmark}` first")
    return [problem for problem in load_benchmark(benchmark) if problem.task_id in kept[benchmark]]


def reference_timeouts(benchmark: str) -> Callable[[str], float]:
    """Return seconds for each problem: those of the benchmark, or of the kept list where its reference needs longer."""
    kept = KeptList.read(benchmark)
    special = kept.timeouts if kept else {}
    return lambda task_id: float(special.get(task_id, INFO[benchmark].timeout_s))


def strict_ids(problems: Sequence[Problem]) -> frozenset[str]:
    """Return the ids of the problems, all of one benchmark, whose answers can be compared outside their own process."""
    info = one_benchmark(problems)
    kept = KeptList.read(info.name)
    spared = set(kept.not_strict) if kept else set()
    return frozenset(problem.task_id for problem in problems) - spared if info.strict else frozenset()


class EnvironmentDiffersError(ValueError):
    """An environment is not the one in which the list of the package was made."""


def check_environment(benchmark: str, environment: Environment) -> None:
    """Refuse an environment whose hash is not that of the list; say in what it differs, and what to do."""
    kept = KeptList.read(benchmark)
    recorded = kept.environment if kept else environment.describe()
    if recorded["hash"] == environment.hash:
        return
    groups = [group for group in recorded["groups"] if group not in RECIPES[benchmark].default]
    options = "".join(f" --with {group}" for group in groups)
    build = f"build it with `vocabx eval-env build {benchmark}{options}`, or " if benchmark in RECIPES else ""
    raise EnvironmentDiffersError(
        f"the environment {environment.name} ({environment.hash}) is not the one of the list of {benchmark} "
        f"({recorded['hash']}): {_differences(recorded, environment.describe())}. To check the list, {build}use "
        "that Python and those packages; `--any-environment` makes a list of your own instead"
    )


def _differences(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Say in what two environments differ, the most telling facts first."""
    parts = [
        f"{key} {found[key] or 'none'} instead of {recorded[key] or 'none'}"
        for key in ("python", "groups", "data")
        if list(found[key]) != list(recorded[key])
    ]
    names = sorted(set(recorded["packages"].items()) ^ set(found["packages"].items()))
    packages = list(dict.fromkeys(name for name, _ in names))
    if packages:
        more = f" and {len(packages) - _NAMED} more" if len(packages) > _NAMED else ""
        parts.append(f"{len(packages)} package{'s' * (len(packages) > 1)} ({', '.join(packages[:_NAMED])}{more})")
    return "; ".join(parts) or "its machine or the files of its data folders"
