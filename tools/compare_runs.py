"""Compare two run folders: rows, metrics, tables, figures and alternative texts must be the same.

    python tools/compare_runs.py runs/before runs/after

Times, memory, provenance and the verdict on times (C13) differ from run to run and are left out, as are notebooks,
which nbval compares. Ends with 1 where a file differs or is missing on one side, and names it; of tables also the first
column or field that differs.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

MEASURED = {"seconds", "peak_bytes", "tokens_per_s", "characters_per_s", "minutes", "date", "created", "elapsed"}
TIMED_CLAIMS = {"C13"}  # whose verdicts rest on seconds
LEFT_OUT = {"provenance.json", "timings.json", "environment.json", "claim.json"}
KINDS = {".safetensors", ".json", ".jsonl", ".csv", ".svg", ".png", ".html"}


def without_measured(value: Any) -> Any:
    """Drop fields that hold a time or a size of memory, and verdicts on times, at any depth."""
    if isinstance(value, dict):
        return {key: without_measured(item) for key, item in value.items() if key not in MEASURED}
    if isinstance(value, list):
        return [without_measured(item) for item in value if not _is_timed(item)]
    return value


def _is_timed(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("claim", "")).split(" ")[0] in TIMED_CLAIMS


def tensors(path: Path) -> dict[str, str]:
    """SHA-256 of every tensor's bytes by name; a file's own metadata does not count."""
    digests = {}
    with safe_open(str(path), framework="pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name).contiguous()
            head = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
            raw = tensor.reshape(-1).view(dtype=torch.uint8).numpy().tobytes() if tensor.numel() else b""
            digests[name] = hashlib.sha256(head + raw).hexdigest()
    return digests


def content(path: Path) -> Any:
    """What of a file must be the same."""
    if path.suffix == ".safetensors":
        return tensors(path)
    if path.suffix == ".json":
        return without_measured(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".jsonl":
        return [without_measured(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".csv":
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        return [without_measured(row) for row in rows]
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(run: Path) -> dict[str, Path]:
    """Files that are compared, by their place in the run folder."""
    found = {str(path.relative_to(run)): path for path in sorted(run.rglob("*")) if path.suffix in KINDS}
    return {place: path for place, path in found.items() if path.name not in LEFT_OUT and path.is_file()}


def first_difference(before: Any, after: Any, place: str = "") -> str:
    """Where two contents part, for a reader."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if before.get(key) != after.get(key):
                return first_difference(before.get(key), after.get(key), f"{place}.{key}")
    if isinstance(before, list) and isinstance(after, list):
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            if one != other:
                return first_difference(one, other, f"{place}[{number}]")
        return f"{place}: {len(before)} entries before, {len(after)} after"
    return f"{place}: {str(before)[:60]} before, {str(after)[:60]} after"


def differences(before: Path, after: Path) -> Iterator[str]:
    """One line for every file that differs."""
    old, new = files(before), files(after)
    for place in sorted(old.keys() | new.keys()):
        if place not in old or place not in new:
            yield f"{place}: only {'after' if place in new else 'before'}"
        elif (one := content(old[place])) != (other := content(new[place])):
            yield f"{place}{first_difference(one, other)}"


def main() -> int:
    """Compare the two folders named on the command line."""
    if len(sys.argv) != 3 or not all(Path(argument).is_dir() for argument in sys.argv[1:]):
        print(__doc__)
        return 2
    before, after = (Path(argument) for argument in sys.argv[1:])
    found = list(differences(before, after))
    print("\n".join(found) if found else f"{len(files(after))} files are the same")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
