"""The report's pages as text: links, equations, pictures, what is dropped, and clear refusals."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from click.testing import CliRunner
from fixtures.tiny_notebooks import write_notebooks
from nbformat.v4 import new_code_cell, new_notebook, new_raw_cell

from vocabx_utils.analysis.report import ReportError, _exporter, build_report
from vocabx_utils.cli import main
from vocabx_utils.cli.report import report
from vocabx_utils.runs import MissingStageError, Run
from vocabx_utils.thesis import CITATION


def site(tmp_path: Path) -> dict[str, str]:
    write_notebooks(tmp_path / "r")
    glossary = tmp_path / "glossary.md"
    glossary.write_text("# Glossary\n\nTerms.\n\n## KL\n\nA divergence, $\\ge 0$.\n")
    paths = build_report(Run("r", tmp_path / "r"), tmp_path / "site", [glossary, tmp_path / "absent.md"])
    assert [p.name for p in paths][:2] == ["index.html", "style.css"]
    return {p.name: p.read_text() for p in paths if p.suffix != ".png"}


def test_pages_link_to_each_other_and_only_to_each_other(tmp_path: Path) -> None:
    pages = site(tmp_path)
    assert set(pages) == {"index.html", "style.css", "02_alignment.html", "03_phase1_training.html", "glossary.html"}
    alignment = pages["02_alignment.html"]
    assert 'href="03_phase1_training.html#the-rows"' in alignment
    assert 'href="glossary.html"' in alignment
    assert "pyproject.toml" in alignment
    assert 'href="../pyproject.toml"' not in alignment
    assert 'rel="next" href="03_phase1_training.html"' in alignment
    assert 'rel="prev" href="02_alignment.html"' in pages["03_phase1_training.html"]
    for name, page in pages.items():
        for target in re.findall(r'(?:href|src)="([^"]+)"', page):
            file, _, anchor = target.partition("#")
            if target.startswith(("data:", "https://arxiv.org/abs/")):  # a link is no request
                continue
            assert not target.startswith("http"), f"{name} reaches for the network: {target}"
            if target.startswith("pictures/"):
                assert (tmp_path / "site" / target).is_file()
                continue
            assert file in pages or not file, f"{name} has a dead link {target}"
            if anchor and (where := pages.get(file or name)):
                assert f'id="{anchor}"' in where, f"{name} has a dead anchor {target}"


def test_equations_become_mathml_and_widgets_and_errors_go(tmp_path: Path) -> None:
    page = site(tmp_path)["02_alignment.html"]
    assert page.count("<math") >= 3
    assert "$$" not in page
    assert "<script" not in page
    assert "a warning" not in page
    assert "An interactive view" in page
    assert 'alt="A rising line."' in page
    assert "<details>" in page
    assert "<msqrt>" in page


def test_raw_html_is_cleaned_also_where_it_looks_like_code() -> None:
    raw = new_raw_cell('<div class=" highlight hl-python"><script>alert(1)</script></div>')
    raw.metadata["raw_mimetype"] = "text/html"
    body, _ = _exporter().from_notebook_node(new_notebook(cells=[raw, new_code_cell("1 < x")]))
    assert "<script" not in body and "alert(1)" in body
    assert '<span class="o">&lt;</span>' in body


def test_a_table_in_a_box_stays_one(tmp_path: Path) -> None:
    write_notebooks(tmp_path / "r")
    page = tmp_path / "notes.md"
    page.write_text("# Notes\n\n> **Left open.** Words.\n>\n> | a | b |\n> | --- | --- |\n> | $x$ | 2 |\n")
    build_report(Run("r", tmp_path / "r"), tmp_path / "site", [page])
    box = BeautifulSoup((tmp_path / "site" / "notes.html").read_text(), "html.parser").blockquote
    assert [cell.get_text() for cell in box.table.find_all(["th", "td"])] == ["a", "b", "x", "2"]
    assert box.find("math")


def test_contents_name_what_is_missing(tmp_path: Path) -> None:
    index = site(tmp_path)["index.html"]
    assert "02 · Alignment" in index
    assert "Where may two tokenizations be compared?" in index
    assert "Not part of this run: 00_start, 01_tokenizer_extension, 04_fine_tuning" in index


def test_a_reader_without_a_mouse_or_eyes_finds_the_way(tmp_path: Path) -> None:
    for name, text in site(tmp_path).items():
        if name == "style.css":
            continue
        page = BeautifulSoup(text, "html.parser")
        assert page.find("body").find(True).get_text() == "Skip to the text", name
        assert page.find(id="text").name == "main" and page.find("header").nav["aria-label"] == "Contents"
        assert [link["href"] for link in page.find_all("a", attrs={"aria-current": "page"})] == [name]
        levels = [int(heading.name[1]) for heading in page.find_all(re.compile("^h[1-6]$"))]
        assert levels[0] == 1 and levels.count(1) == 1, f"{name}: {levels}"
        assert all(after <= before + 1 for before, after in pairwise(levels)), f"{name}: {levels}"
        assert all(cell.get("scope") in ("row", "col") for cell in page.find_all("th")), name
        anchors = [tag["id"] for tag in page.find_all(id=True)]
        assert len(anchors) == len(set(anchors)), name


def test_first_page_tells_the_thesis_and_the_run(tmp_path: Path) -> None:
    index = BeautifulSoup(site(tmp_path)["index.html"], "html.parser")
    assert index.h1.get_text() == CITATION["title"]
    text = " ".join(index.main.get_text().split())
    assert all(str(CITATION[name]) in text for name in ("author", "university", "year", "arxiv"))
    assert "called r," in text


def test_twice_the_same_bytes(tmp_path: Path) -> None:
    write_notebooks(tmp_path / "r")
    sites = []
    for part in ("a", "b"):
        paths = build_report(Run("r", tmp_path / "r"), tmp_path / part)
        sites.append([path.read_bytes() for path in paths])
    assert sites[0] == sites[1]


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingStageError, match="executed notebook"):
        build_report(Run("r", tmp_path), tmp_path / "site")
    (tmp_path / "02_alignment.ipynb").write_text("{ torn")
    with pytest.raises(ReportError, match=r"02_alignment\.ipynb"):
        build_report(Run("r", tmp_path), tmp_path / "site")
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))
    answer = CliRunner().invoke(main, ["report", "nosuch"])
    assert answer.exit_code == 1
    assert "There is no run 'nosuch'" in answer.output
    assert not (tmp_path / "runs" / "nosuch").exists()


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path))
    write_notebooks(tmp_path / "r")
    answer = CliRunner().invoke(report, ["r"])
    assert answer.exit_code == 0, answer.output
    assert (tmp_path / "r" / "report" / "index.html").exists()


@pytest.mark.parametrize(
    ("below", "lead"),
    [
        ("A sentence that goes on\nin another line. More.", "A sentence that goes on in another line."),
        ("What of `code`?\n\nMore.", "What of <code>code</code>?"),
        ("All is in place. What now? And then?", "All is in place. What now?"),
        ("## A section\n\nThis sentence introduces the section.", ""),
        ("| a | b |\n| - | - |\n\nThis one follows a table.", ""),
        ("- an item", ""),
        ("```sh\ncommand\n```", ""),
        ("", ""),
    ],
)
def test_a_page_is_introduced_by_the_sentence_right_below_its_title(tmp_path: Path, below: str, lead: str) -> None:
    write_notebooks(tmp_path / "r")
    page = tmp_path / "notes.md"
    page.write_text(f"# Notes\n\n{below}\n")
    [path, *_] = build_report(Run("r", tmp_path / "r"), tmp_path / "site", [page])
    index = BeautifulSoup(path.read_text(), "html.parser")
    [told] = [term.find_next_sibling("dd") for term in index.find_all("dt") if term.get_text() == "Notes"]
    assert told.decode_contents().strip().removeprefix("<p>").removesuffix("</p>") == lead
