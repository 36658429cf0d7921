"""The report's pages as text: links, equations, pictures, what is dropped, and clear refusals."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from fixtures.tiny_notebooks import write_notebooks

from vocabx_utils.analysis.report import ReportError, build_report
from vocabx_utils.cli.report import report
from vocabx_utils.runs import MissingStageError, Run


def site(tmp_path: Path) -> dict[str, str]:
    write_notebooks(tmp_path / "r")
    glossary = tmp_path / "glossary.md"
    glossary.write_text("# Glossary\n\nTerms.\n\n## KL\n\nA divergence, $\\ge 0$.\n")
    paths = build_report(Run("r", tmp_path / "r"), tmp_path / "site", [glossary, tmp_path / "absent.md"])
    assert [p.name for p in paths][:2] == ["index.html", "style.css"]
    return {p.name: p.read_text() for p in paths}


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
            if target.startswith("data:"):
                continue
            assert not target.startswith("http"), f"{name} reaches for the network: {target}"
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


def test_contents_name_what_is_missing(tmp_path: Path) -> None:
    index = site(tmp_path)["index.html"]
    assert "02 · Alignment" in index
    assert "Where may two tokenizations be compared?" in index
    assert "Not part of this run: 00_start, 01_tokenizer_extension, 04_fine_tuning" in index


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
    answer = CliRunner().invoke(report, ["nosuch"])
    assert answer.exit_code == 2
    assert "There is no run 'nosuch'" in answer.output
    assert not (tmp_path / "runs" / "nosuch").exists()


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path))
    write_notebooks(tmp_path / "r")
    answer = CliRunner().invoke(report, ["r"])
    assert answer.exit_code == 0, answer.output
    assert (tmp_path / "r" / "report" / "index.html").exists()


def test_contents_show_one_whole_sentence_of_each_page(tmp_path: Path) -> None:
    write_notebooks(tmp_path / "r")
    page = tmp_path / "notes.md"
    page.write_text("# Notes\n\n| a | b |\n| - | - |\n\n- an item\n\nA sentence that goes on\nin another line. More.\n")
    [index, *_] = build_report(Run("r", tmp_path / "r"), tmp_path / "site", [page])
    assert "A sentence that goes on in another line." in index.read_text()
    assert "More." not in index.read_text()
