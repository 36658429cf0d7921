"""Clean notebooks for a commit, and refuse those that cannot be cleaned.

Outputs and execution counts stay: readers meet the notebooks on a web page, and nbval compares against them (a
cell without count and output would pass unseen). Widget state, standard error, timings, kernel names and paths
of this machine go. A notebook that was not saved from one run in order, holds an error, a path of a machine or
more than 1.5 MB is named and refused.

    python tools/clean_notebooks.py notebooks/*.ipynb           rewrite in place; status 1 if anything was wrong
    python tools/clean_notebooks.py --check notebooks/*.ipynb   change nothing
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 1_500_000
CHECK_MARK = "NBVAL_CHECK_OUTPUT"
WIDGETS = ("application/vnd.jupyter.widget-view+json", "application/vnd.jupyter.widget-state+json")
KEPT_CELL_METADATA = ("tags", "jupyter", "slideshow")
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "pygments_lexer": "ipython3",
}
MACHINE_PATH = re.compile(
    r"(?<![\w.~/:-])/(?:home|root|Users|work|tmp|private|var/folders|mnt|content|workspace)/[\w.~-]+"
    r"|\b[A-Z]:\\+Users\\+\w+"
)

Notebook = dict[str, Any]


def clean(notebook: Notebook, replacements: Mapping[str, str] | None = None) -> Notebook:
    """Return a notebook as it may be committed.

    Args:
        notebook: parsed `.ipynb`, format 4.
        replacements: texts to replace in text outputs, such as the folder of the checkout.

    Returns:
        A new notebook; cleaning it again changes nothing.
    """
    cells = [_clean_cell(cell, replacements or {}) for cell in notebook["cells"]]
    metadata = {"kernelspec": KERNEL, "language_info": LANGUAGE}
    return {**notebook, "cells": cells, "metadata": metadata}


def _clean_cell(cell: Notebook, replacements: Mapping[str, str]) -> Notebook:
    metadata = {k: v for k, v in cell.get("metadata", {}).items() if k in KEPT_CELL_METADATA and v}
    cleaned = {**cell, "metadata": metadata}
    if cell["cell_type"] == "code":
        cleaned["outputs"] = list(_merge_streams(_clean_outputs(cell.get("outputs", []), replacements)))
    return cleaned


def _clean_outputs(outputs: list[Notebook], replacements: Mapping[str, str]) -> Iterator[Notebook]:
    for output in outputs:
        if output["output_type"] == "stream":
            if output["name"] != "stderr":
                yield {**output, "text": _replace(output["text"], replacements)}
        elif "data" not in output:
            yield output
        elif not any(kind in output["data"] for kind in WIDGETS):
            data = {k: _replace(v, replacements) if _is_text(k) else v for k, v in output["data"].items()}
            yield {**output, "data": data}


def _merge_streams(outputs: Iterator[Notebook]) -> Iterator[Notebook]:
    """Join neighbouring pieces of standard output: how they were cut depends on timing."""
    held: Notebook | None = None
    for output in outputs:
        if held and output["output_type"] == "stream" and held.get("name") == output["name"]:
            held = {**held, "text": _lines(_joined(held["text"]) + _joined(output["text"]))}
            continue
        if held:
            yield held
        held = output
    if held:
        yield held


def _is_text(kind: str) -> bool:
    return kind.startswith("text/") or kind in ("image/svg+xml", "application/javascript")


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _replace(text: str | list[str], replacements: Mapping[str, str]) -> list[str]:
    whole = _joined(text)
    for old, new in replacements.items():
        whole = whole.replace(old, new)
    return _lines(whole)


def find_problems(notebook: Notebook, size: int = 0) -> list[str]:
    """Say what cleaning cannot mend.

    Args:
        notebook: parsed `.ipynb`, format 4.
        size: bytes of its file.

    Returns:
        One sentence for each problem; empty for a good notebook.
    """
    code = [c for c in notebook["cells"] if c["cell_type"] == "code" and _joined(c["source"]).strip()]
    counts = [cell.get("execution_count") for cell in code]
    problems = []
    if size > MAX_BYTES:
        problems.append(f"{size:,} bytes; at most {MAX_BYTES:,}")
    if counts != list(range(1, len(code) + 1)):
        problems.append(f"not saved from one run in order (counts {_shorten(counts)}): restart and run all")
    for number, cell in enumerate(code, 1):
        tags = cell.get("metadata", {}).get("tags", [])
        kinds = [output["output_type"] for output in cell.get("outputs", [])]
        if "error" in kinds and "raises-exception" not in tags:
            problems.append(f"code cell {number} ended with an error")
        if CHECK_MARK in _joined(cell["source"]) and not kinds:
            problems.append(f"code cell {number} is marked {CHECK_MARK} but has no output")
    paths = sorted({match.group() for text in _texts(notebook) for match in MACHINE_PATH.finditer(text)})
    if paths:
        problems.append(f"paths of a machine: {', '.join(paths[:5])}")
    return problems


def _shorten(counts: list[int | None]) -> str:
    shown = ", ".join(str(count) for count in counts[:8])
    return shown + (", …" if len(counts) > 8 else "")


def _texts(notebook: Notebook) -> Iterator[str]:
    for cell in notebook["cells"]:
        yield _joined(cell["source"])
        for output in cell.get("outputs", []):
            yield _joined(output.get("text", ""))
            yield from (_joined(v) for k, v in output.get("data", {}).items() if _is_text(k))
            yield "\n".join(output.get("traceback", []))


def own_paths() -> dict[str, str]:
    """Folders of this machine and what stands for them in a committed notebook; longest first."""
    from vocabx_utils.paths import project_root, runs_root

    folders = {str(runs_root()): "runs", str(project_root()): ".", str(Path.home()): "~"}
    both = {end: new for old, word in folders.items() for end, new in ((f"{old}/", f"{word}/"), (old, word))}
    both[f"{project_root()}/"] = ""
    return dict(sorted(both.items(), key=lambda pair: -len(pair[0])))


def write_notebook(path: Path, notebook: Notebook) -> None:
    """Write a notebook as Jupyter does, so that saving it there leaves no difference."""
    text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")


def main(words: list[str] | None = None) -> int:
    """Clean or check the notebooks named on the command line; the status is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("notebooks", nargs="*", type=Path)
    options = parser.parse_args(words)
    status = 0
    for path in options.notebooks:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cleaned = clean(notebook, own_paths())
        if cleaned != notebook:
            status = 1
            print(f"{path}: {'needs cleaning' if options.check else 'cleaned'}")
            if not options.check:
                write_notebook(path, cleaned)
        for problem in find_problems(cleaned, path.stat().st_size):
            status = 1
            print(f"{path}: {problem}")
    return status


if __name__ == "__main__":
    sys.exit(main())
