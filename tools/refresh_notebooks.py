"""Execute source notebooks with their own defaults and write them back, cleaned for a commit.

python tools/refresh_notebooks.py [NN …]

The run goes to a fresh folder, so that no stage is skipped as finished; set VOCABX_RUNS to keep it or to build on
an earlier one. A notebook that fails is left as it was.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from clean_notebooks import clean, find_problems, own_paths, write_notebook

from vocabx_utils.cli.notebooks import NotebookFailed, find_notebooks, run_notebook, select_notebooks


def refresh(source: Path, scratch: Path) -> list[str]:
    """Execute one notebook and write it back; returns what cleaning could not mend."""
    timing = run_notebook(source, scratch / source.name, {})
    notebook = clean(json.loads((scratch / source.name).read_text(encoding="utf-8")), own_paths())
    write_notebook(source, notebook)
    print(f"{source.name}: {timing.seconds / 60:.1f} min, {timing.peak_mib:,.0f} MiB", flush=True)
    return find_problems(notebook, source.stat().st_size)


def main(names: list[str]) -> int:
    """Refresh the named notebooks, or all; the status is 1 if one failed or cannot be committed."""
    available = find_notebooks()
    folder = Path(tempfile.mkdtemp(prefix="vocabx-"))  # stays after a failure, with the part that ran
    os.environ.setdefault("VOCABX_RUNS", str(folder / "runs"))
    for stage in select_notebooks(available, tuple(names)):
        print(f"{stage} …", flush=True)
        try:
            problems = refresh(available[stage], folder)
        except NotebookFailed as error:
            print(error)
            return 1
        if problems:
            print("\n".join(f"{stage}: {problem}" for problem in problems))
            return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
