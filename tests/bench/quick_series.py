"""Time notebooks of the quick series, in one checkout or in two, and keep both beside each other.

    python tests/bench/quick_series.py before --tree CHECKOUT --run runs/quick 03 04
    python tests/bench/quick_series.py after --run runs/quick 03 04

Each notebook is executed alone, by `vocabx run` of the checkout, on a copy of the earlier stages of a finished run, so
that nothing is skipped. Results are added to `results/bench/quick-series.json`: wall time, and CPU seconds of
runner and kernel together, which depend little on what else the machine is doing.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vocabx_utils import files
from vocabx_utils.cli.notebooks import find_notebooks, select_notebooks
from vocabx_utils.paths import STAGES

OUT = Path(__file__).resolve().parents[2] / "results" / "bench" / "quick-series.json"


def measure(tree: Path, stage: str, finished: Path) -> dict[str, Any]:
    """Execute one notebook of a checkout.

    Args:
        tree: the checkout.
        stage: full name of the notebook.
        finished: folder of a finished run, the source of the earlier stages.

    Returns:
        Seconds of wall time and of the processors, peak memory, load of the machine, revision.
    """
    with tempfile.TemporaryDirectory(prefix="vocabx-") as scratch:
        later = shutil.ignore_patterns(*(f"{name}*" for name in STAGES[STAGES.index(stage) :]))
        shutil.copytree(finished, Path(scratch) / finished.name, ignore=later)
        environment = os.environ | {"PYTHONPATH": str(tree), "VOCABX_ROOT": str(tree), "VOCABX_RUNS": scratch}
        command = [sys.executable, "-m", "vocabx_utils", "run", "--only", stage, "--run-name", finished.name]
        load, began = os.getloadavg()[0], time.perf_counter()
        child = subprocess.Popen(command, env=environment, cwd=tree)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{stage} failed in {tree}; its messages stand above")
        timing = files.read_json(Path(scratch) / finished.name / "timings.json")[stage]
    return {
        "wall_s": round(seconds, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": round(timing["peak_mib"]),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "revision": _revision(tree),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def summarise(notebooks: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Add up what was measured on both sides.

    Args:
        notebooks: measurements by notebook and side.

    Returns:
        Per unit (wall_s, cpu_s): before, after, and after over before.
    """
    both = [sides for sides in notebooks.values() if {"before", "after"} <= sides.keys()]
    total = {}
    for unit in ("wall_s", "cpu_s"):
        before, after = (sum(sides[side][unit] for sides in both) for side in ("before", "after"))
        total[unit] = {"before": round(before, 1), "after": round(after, 1), "share": round(after / before, 3)}
    return total


def _revision(tree: Path) -> str:
    answers = [
        subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True, check=True).stdout.strip()
        for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    ]
    return answers[0] + (" with changes" if answers[1] else "")


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("before", "after"))
    parser.add_argument("notebooks", nargs="*", help="numbers, such as 03; all by default")
    parser.add_argument("--tree", type=Path, default=OUT.parents[2], help="checkout to measure")
    parser.add_argument("--run", type=Path, required=True, help="folder of a finished quick run")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    for stage in select_notebooks(find_notebooks(), tuple(options.notebooks)):
        found = measure(options.tree.resolve(), stage, options.run.resolve())
        print(f"{stage} {options.side}: {found}", flush=True)
        held: dict[str, Any] = files.read_json(options.out) if options.out.exists() else {}
        notebooks = held.get("notebooks", {})
        notebooks.setdefault(stage, {})[options.side] = found
        threads = os.environ.get("OMP_NUM_THREADS", "unset")
        machine = {"processor": platform.machine(), "cores": os.cpu_count(), "OMP_NUM_THREADS": threads}
        report = {"profile": "quick", "machine": machine, "notebooks": dict(sorted(notebooks.items()))}
        if any({"before", "after"} <= sides.keys() for sides in notebooks.values()):
            report["total_of_those_measured_twice"] = summarise(notebooks)
        files.write_json(options.out, report)


if __name__ == "__main__":
    main()
