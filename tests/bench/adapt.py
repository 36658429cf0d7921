"""What `vocabx adapt` takes and gains: one measured call a file, and the tables of docs/adapt.md.

    python tests/bench/adapt.py run smollm2-python-cpu --model smollm2-135m --from TEXTS --out OUT --n 64
    python tests/bench/adapt.py run qwen-python-h200 --model MODEL --from TEXTS --out OUT --n 800 --strategy auto
    python tests/bench/adapt.py page

`run` starts the command in a process of its own, with the options that follow the name (and `--label`, the model's name
in the tables, where MODEL is a folder), and writes `results/adapt/NAME.json`: minutes, memory, the load of the machine,
and the summary without its texts. An OUT that is there already is refused, because its parts would not be timed again.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench_parts import NOTHING, device_name, fill_page, known_json, table_of, told_interval, told_range

from vocabx_utils.files import read_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "results" / "adapt", ROOT / "docs" / "adapt.md"
KEPT = ("model", "fingerprint", "device", "dtype", "texts", "settings", "sweep", "likelihood", "divergence", "packing",
        "seconds", "warnings", "announced_bytes", "peak_bytes", "versions", "git", "finished")  # fmt: skip


def main() -> None:
    """Measure a call, or fill the page."""
    if sys.argv[1:2] == ["page"]:
        write_page(RESULTS, PAGE)
    elif sys.argv[1:2] == ["run"] and len(sys.argv) > 3:
        run(sys.argv[2], sys.argv[3:])
    else:
        raise SystemExit(__doc__)


def run(name: str, options: list[str]) -> None:
    """Time `vocabx adapt` and keep what it found."""
    where = {option: options[options.index(option) + 1] for option in ("--model", "--out")}
    if Path(where["--out"]).exists():
        raise SystemExit(f"{where['--out']} exists; give another --out, so that every part is timed")
    named = _take(options, "--label")
    at = options.index("--model")
    command = [sys.executable, "-m", "vocabx_utils", "adapt", where["--model"], *options[:at], *options[at + 2 :]]
    before, start = os.getloadavg(), time.perf_counter()
    subprocess.run(command, check=True)
    minutes = (time.perf_counter() - start) / 60
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    summary = read_json(Path(where["--out"]) / "summary.json")
    row: dict[str, Any] = {
        "minutes": minutes,
        "cpu_minutes": (used.ru_utime + used.ru_stime) / 60,
        "process_gb": used.ru_maxrss * 1024 / 1e9,
        "load": {"before": before, "after": os.getloadavg()},
        "cores": len(os.sched_getaffinity(0)),
        "machine": device_name(),
        **{key: summary[key] for key in KEPT},
        **({"model": named} if named else {}),
        "strategy": summary["tokens"]["strategy"],
        "gains": summary["tokens"]["gains"],
        "changed": summary["tokens"]["changed"],
        "metrics": summary["rows"]["metrics"],
        "speed": summary["generation"]["speed"],
        "new_in_continuations": sum(prompt["after"]["new"] for prompt in summary["generation"]["prompts"]),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    print(f"{minutes:.1f} min, {row['cpu_minutes']:.1f} min of CPU time, {row['process_gb']:.1f} GB")


def _take(options: list[str], name: str) -> str | None:
    """Take an option and its value out."""
    if name not in options:
        return None
    at = options.index(name)
    value = options[at + 1]
    del options[at : at + 2]
    return value


def write_page(results: Path, page: Path) -> None:
    """Fill the tables of the page from the files that are there."""
    runs = [read_json(path) for path in sorted(results.glob("*.json")) if path.stem != "serving"]
    served = serving_table(known_json(results / "serving.json"))
    fill_page(page, {"runs": run_table(runs), "gains": gain_table(runs), "served": served})


def run_table(runs: list[dict[str, Any]]) -> str:
    """What each call took."""
    header = [
        "model, text, N", "machine", "minutes", "CPU minutes", "load before, after", "memory, GB: announced",
        "measured", "chosen: rate, epochs", "rows: tokens a second", "hours for 800 tokens",
    ]  # fmt: skip
    lines = [
        [
            label(row), f"{row['machine']}, {row['cores']} cores", f"{row['minutes']:.1f}", f"{row['cpu_minutes']:.1f}",
            ", ".join(f"{row['load'][side][0]:.1f}" for side in ("before", "after")),
            f"{row['announced_bytes'] / 1e9:.1f}", f"{row['peak_bytes'] / 1e9:.1f}", chosen(row), *pace_and_hours(row),
        ]
        for row in runs
    ]  # fmt: skip
    return table_of(header, lines, right=(2, 3, 5, 6, 8, 9)) if lines else NOTHING


def chosen(row: dict[str, Any]) -> str:
    """Learning rate and epochs of the sweep; empty where a rate was given."""
    return f"{row['sweep']['learning_rate']:g}, {row['sweep']['epochs']}" if row["sweep"] else ""


def pace_and_hours(row: dict[str, Any]) -> tuple[str, str]:
    """The sweep's tokens a second, and the hours that 800 rows take at most at that rate by the device's defaults.

    Both empty where a rate was given, since nothing was swept then.
    """
    pace = (row["sweep"] or {}).get("tokens_per_second")
    if not pace:
        return "", ""
    windows, epochs = (32, 4) if "NVIDIA" in row["machine"] else (8, 2)
    return f"{pace:,.0f}", f"{800 * windows * 48 * epochs / pace / 3600:.2f}"


def gain_table(runs: list[dict[str, Any]]) -> str:
    """What each call gained on held-out files."""
    header = [
        "model, text, N", "tokens saved", "bits per byte: base", "untrained rows, difference", "adapted, difference",
        "KL at new tokens: before", "after", "characters a second, of base (rounds)",
    ]  # fmt: skip
    lines = []
    for row in runs:
        found = {model["model"]: model for model in row["likelihood"]["rows"]}
        sides = [found[side] for side in ("before", "after")]
        low, *_, high = row["speed"]["ratios"]
        lines.append([
            label(row), f"{row['gains'][-1]['saved_per_1000'] / 10:.1f} %", f"{found['base']['bits_per_byte']:.4f}",
            *(told_interval((side[key] for key in ("difference", "low", "high")), "+.4f") for side in sides),
            *(f"{row['divergence'][side]['kl_last']:.3f}" for side in ("before", "after")),
            told_range((row["speed"]["ratio"], low, high)),
        ])  # fmt: skip
    return table_of(header, lines, right=(1, 2, 5, 6)) if lines else NOTHING


def serving_table(found: dict[str, Any]) -> str:
    """Which servers answered as `generate` does."""
    if not found:
        return NOTHING
    header = ["way", "prompts", "answers as `generate` gives them"]
    lines = [[row["way"], str(row["prompts"]), str(row["same"])] for row in found["ways"]]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    said = (
        f"{found['new_in_prompts']} new tokens stood in the prompts, {found['new_in_answers']} in the answers of up to "
        f"{found['tokens']} tokens ({versions}; CPU, float32)."
    )
    return f"{table_of(header, lines, right=(1, 2))}\n\n{said}"


def label(row: dict[str, Any]) -> str:
    """Name a call."""
    size = sum(part["bytes"] for part in row["texts"].values()) / 1e6
    kinds = ", ".join(kind["type"] for kind in row["gains"] if kind["type"] != "all")
    tuned = "" if row["settings"]["fine_tune"] == "none" else ", LoRA"
    name, n = Path(row["model"]).name, row["settings"]["n"]
    return f"{name}, {size:.1f} MB of {kinds}, {n} `{row['strategy']}`{tuned}"


if __name__ == "__main__":
    main()
