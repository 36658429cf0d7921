"""Every notebook of the series obeys the house style: order, opening and closing, budgets, parameters."""

from __future__ import annotations

import ast
import json
import re
import statistics
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from clean_notebooks import CHECK_MARK, clean, find_problems

from vocabx_utils.cli.parameters import declared_parameters
from vocabx_utils.paths import STAGES

ROOT = Path(__file__).resolve().parents[1]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
COMMON = {"run_name": "quick", "model": "smollm2-135m", "device": "auto", "dtype": "auto", "seed": 0}
ACROSS_RUNS = "07_compare_runs"  # reads a table: no model, no device
OVERVIEW = "00_start"  # a guide: more prose, fewer cells
WIDTH = 88  # of a line of code, so that a page shows it without scrolling
CONTENT = re.compile(r"^## (?!Parameters|Preflight|Imports)", re.M)  # where the subject itself begins

pytestmark = pytest.mark.parametrize("path", PATHS, ids=[p.stem for p in PATHS])


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def cells(path: Path, kind: str) -> list[str]:
    """Sources of all cells of a kind."""
    return [text(cell) for cell in load(path)["cells"] if cell["cell_type"] == kind]


def code_lines(source: str) -> list[str]:
    """Lines that hold code: no blank lines, no comments."""
    return [line for line in source.splitlines() if line.strip() and not line.strip().startswith("#")]


def trees(path: Path) -> list[ast.Module]:
    """Syntax trees of the code cells; cells with IPython magics do not parse and fail the test."""
    return [ast.parse(source) for source in cells(path, "code")]


def test_is_a_clean_notebook_saved_in_order_within_its_size(path: Path) -> None:
    notebook = load(path)
    nbformat.validate(nbformat.from_dict(notebook))
    assert path.stem in STAGES
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert all(text(cell).strip() for cell in notebook["cells"])
    assert find_problems(notebook, path.stat().st_size) == []
    assert clean(notebook) == notebook, "run tools/clean_notebooks.py"


def test_opens_and_closes_as_the_style_says(path: Path) -> None:
    prose = cells(path, "markdown")
    assert re.match(rf"# {path.stem[:2]} · \S", prose[0])
    opening = "\n".join(prose[:3])
    for label in ("Goal", "You need", "You get", "Time"):
        assert re.search(rf"\*\*{label}", opening), label
    closing = "\n".join(prose[-3:])
    for word in ("What we learned", "Limits", "Next"):
        assert word in closing, word
    assert closing.count("<details>") == 2, "two exercises with hidden answers"
    assert len(re.findall(r"<details><summary>Answer</summary>\s+\S", closing)) == 2
    assert closing.count("<details>") == closing.count("</details>")


def test_puts_the_thesis_beside_numbers_of_the_run(path: Path) -> None:
    everything = load(path)["cells"]
    starts = [at for at, cell in enumerate(everything) if re.search("what the thesis says", text(cell), re.I)]
    assert starts, "no box 'what the thesis says / what we see'"
    box = next(cell for cell in everything[starts[-1] :] if cell["cell_type"] == "code")
    assert re.search("we see", text(everything[starts[-1]]) + text(box), re.I)
    shown = json.dumps([[output.get("text"), output.get("data")] for output in box["outputs"]])
    assert re.search(r"\d", shown), "the box has no number"
    assert re.search(r"\{.+\}|DataFrame|findings", text(box)), "the box is not filled from the run"


def test_leads_to_the_glossary_and_says_what_to_read(path: Path) -> None:
    prose = cells(path, "markdown")
    if path.stem != OVERVIEW:
        assert re.search(r"\(00_start\.ipynb#(cell-id=glossary|Glossary)\)", "\n".join(prose[:3]))
        return
    assert any(re.match("## Glossary$", cell, re.M) for cell in prose)
    ways = next(cell for cell in prose if "ways to read" in cell)
    assert all(re.search(rf"\*\*{time}", ways) for time in ("Half an hour", "Two hours", "A day"))


def test_headings_make_a_contents_list(path: Path) -> None:
    prose = re.sub(r"```.*?```", "", "\n".join(cells(path, "markdown")), flags=re.S)
    headings = re.findall(r"^(#+) (.+)$", prose, flags=re.M)
    assert [level for level, _ in headings].count("#") == 1
    assert {level for level, _ in headings} <= {"#", "##", "###"}
    titles = " / ".join(title for level, title in headings if level == "##")
    for word in ("Checks", "Save", "learned"):
        assert word in titles, word


def test_parameters_are_plain_commented_and_common_ones_agree(path: Path) -> None:
    parameters = declared_parameters(path)
    held = {name: parameters[name].default for name in COMMON if name in parameters}
    expected = ("run_name", "seed") if path.stem == ACROSS_RUNS else tuple(COMMON)
    assert held == {name: COMMON[name] for name in expected}
    assert set(papermill.inspect_notebook(str(path))) == set(parameters)
    tagged = [c for c in load(path)["cells"] if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    lines = text(tagged[0]).splitlines()
    for node in ast.parse(text(tagged[0])).body:
        assert any("#" in line for line in lines[max(node.lineno - 2, 0) : node.end_lineno]), lines[node.lineno - 1]


def test_comes_to_the_point_soon_after_its_parameters(path: Path) -> None:
    everything = load(path)["cells"]
    at = next(i for i, cell in enumerate(everything) if "parameters" in cell["metadata"].get("tags", []))
    opened = next(i for i, cell in enumerate(everything) if "open_notebook(" in text(cell))
    assert opened - at <= 2
    assert re.search(r"open_notebook\(\w+, globals\(\)\)", text(everything[opened]))
    assert any(CONTENT.search(text(cell)) for cell in everything[at : at + 6])


def test_keeps_the_budgets(path: Path) -> None:
    code, prose = cells(path, "code"), cells(path, "markdown")
    lengths = [len(code_lines(source)) for source in code]
    functions = [n for tree in trees(path) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    body = re.sub(r"<details>.*?</details>", "", "\n".join(prose), flags=re.S)  # answers to exercises do not count
    words = len(re.sub(r"[#*`|$\\-]+", " ", body).split())
    assert (12 if path.stem == OVERVIEW else 20) <= len(code) <= 50
    assert statistics.median(lengths) <= 8
    assert max(lengths) <= 30
    assert 1.5 <= len(prose) / len(code) <= 2.6
    assert len(functions) <= 4
    assert 8 <= words / sum(lengths) <= (24 if path.stem == OVERVIEW else 16)
    wide = [line for source in code for line in source.splitlines() if len(line) > WIDTH]
    assert not wide


def test_compares_five_to_twelve_cells_and_asserts_two_to_six_results(path: Path) -> None:
    code = cells(path, "code")
    assert 5 <= sum(CHECK_MARK in source for source in code) <= 12
    assertions = [n for tree in trees(path) for n in ast.walk(tree) if isinstance(n, ast.Assert)]
    assert 2 <= len(assertions) <= 6


def test_does_nothing_that_breaks_elsewhere(path: Path) -> None:
    source = "\n".join(cells(path, "code"))
    for pattern in (r"^\s*[!%]", r"sys\.path", r"\.cwd\(", r"\bgetcwd\(", r"\.chdir\(", r"\bos\.path\b"):
        assert not re.search(pattern, source, flags=re.M), pattern
    nodes = [node for tree in trees(path) for node in ast.walk(tree)]
    assert not [n for n in nodes if isinstance(n, ast.ExceptHandler) and n.type is None]
    literals = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    assert not [s for s in literals if re.match(r"/[A-Za-z]+/|[A-Z]:\\", s)]
