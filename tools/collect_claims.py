"""Keep the verdicts on the thesis's claims in `results/claims`, from which notebook 00 builds its table.

    python tools/collect_claims.py RUN [RUN …]   # the verdicts that the notebooks of a run have written
    python tools/collect_claims.py               # those of the stored results: phase 1 and fine-tuning, and results/gpu

Each setting is one file with its date, its git revision and its verdicts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vocabx_utils import claims, paths, runs


def main(names: list[str]) -> int:
    """Collect the named runs, or the stored results; the status is 1 where a run holds no verdict."""
    results = paths.project_root() / "results"
    found = [claims.collect(runs.Run(name, _folder(name))) for name in names]
    if not names:
        found = [claims.collect_stored(results)]
        if (results / "gpu" / "verdict.json").exists():
            found.append(claims.collect_reproduction(results))
    for setting in found:
        if not setting.verdicts:
            print(f"{setting.name}: no notebook of this run has written verdicts yet")
            return 1
        path = setting.write(results / "claims")
        print(f"{paths.show_path(path)}: {len(setting.verdicts)} verdicts")
    return 0


def _folder(name: str) -> Path:
    return paths.runs_root() / name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
