"""HTML that the notebooks store says what it has to say on GitHub too, which drops styles, scripts and drawings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.github_view import github_view

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))


def stored_html(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return ["".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {})]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_nothing_that_a_notebook_shows_lives_in_what_github_drops(path: Path) -> None:
    for html in stored_html(path):
        assert "<script" not in html, "a script does not run there"
        assert "<svg" not in html, "the words of a drawing would stay as stray text: make it a picture"
        page = github_view(html)
        assert page.get_text().strip() or page.img, "nothing is left"
        assert all(picture.get("alt") for picture in page.find_all("img"))
        assert all(found.summary for found in page.find_all("details")), "a fold without a title"


def test_the_emulation_drops_what_github_drops() -> None:
    page = github_view(
        '<style>p{}</style><p style="color:red" class="a" role="note" title="t">one</p><script>two()</script>'
        '<svg viewBox="0 0 1 1"><text x="0">stray</text></svg>'
    )
    assert str(page) == '<p title="t">one</p>stray'
