"""`vocabx lab`: JupyterLab on the whole checkout, with working copies of the notebooks.

JupyterLab saves a notebook while it is used. The sources are stored with outputs that tests compare, so one works on
copies in `lab/`: a folder beside `notebooks/`, so that relative links lead to the same files, and ignored by git.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from vocabx_utils.cli.notebooks import find_notebooks, select_notebooks
from vocabx_utils.files import atomic_path, file_digest, read_json, write_json
from vocabx_utils.paths import project_root


def copy_notebooks(sources: dict[str, Path], folder: Path) -> dict[str, str]:
    """Bring working copies up to date; say of each `copied`, `kept` (current or worked on) or `kept, source changed`.

    A copy that was worked on is never touched; `.copied.json` holds the digest of each source when it was copied.
    """
    record = folder / ".copied.json"
    known = read_json(record) if record.exists() else {}
    done = {}
    for stage, source in sources.items():
        copy, now = folder / source.name, file_digest(source)
        if not copy.exists() or (file_digest(copy) == known.get(stage) != now):
            with atomic_path(copy) as temporary:
                temporary.write_bytes(source.read_bytes())
            known[stage] = now
            done[stage] = "copied"
        else:
            done[stage] = "kept" if known.get(stage) == now else "kept, source changed"
    write_json(record, known)
    return done


@click.command()
@click.argument("notebook", default="00")
@click.option("--no-browser", is_flag=True, help="Print the address, open nothing.")
def lab(notebook: str, no_browser: bool) -> None:
    """Open JupyterLab on the checkout, with working copies of the notebooks in lab/.

    NOTEBOOK is a number or name, such as 03. Docs, runs and figures can be opened beside it. A copy stays as you left
    it; remove it to have the source again.
    """
    sources = find_notebooks()
    (stage,) = select_notebooks(sources, (notebook,))
    root = project_root()
    for name, what in copy_notebooks(sources, root / "lab").items():
        if what == "kept, source changed":
            click.echo(f"lab/{name}.ipynb is yours and was kept; its source is newer. Remove it to have the new one.")
    words = ["--ServerApp.root_dir", str(root), str(root / "lab" / f"{stage}.ipynb")]
    words += ["--no-browser"] if no_browser else []
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # JupyterLab refuses to run as root, as containers do
        words.append("--allow-root")
    answer = subprocess.run([sys.executable, "-m", "jupyterlab", *words], cwd=root)
    sys.exit(answer.returncode)
