"""HTML of a page after mending: headings, tables, text in columns, links, pictures."""

import base64
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from fixtures.tiny_notebooks import picture

from vocabx_utils.analysis.report_html import Mended, ReportError, mend_html


def mended(body: str, folder: Path = Path(), **pages: str) -> Mended:
    return mend_html(body, "page", folder, {f"{name}.ipynb": file for name, file in pages.items()})


def soup(body: str) -> BeautifulSoup:
    return BeautifulSoup(mended(body).body, "html.parser")


def test_headings_lose_gaps_and_share_no_anchor() -> None:
    page = mended('<h1 id="T">T</h1><h3 id="A">A</h3><h4 id="A">A</h4><h2 id="B">B<a class="anchor-link">¶</a></h2>')
    assert page.body == '<h1 id="t">T</h1><h2 id="a">A</h2><h3 id="a-2">A</h3><h2 id="b">B</h2>'
    assert page.sections == (("a", "A"), ("b", "B"))


def test_both_forms_of_an_anchor_find_a_heading_with_punctuation() -> None:
    links = '<a href="#the-teachers-pass">as GitHub</a><a href="#The-teacher%27s-pass">as JupyterLab</a>'
    page = soup(f'<h1 id="T">T</h1><h2 id="The-teacher\'s-pass">The teacher\'s pass</h2>{links}')
    assert page.h2["id"] == "the-teachers-pass"
    assert [link["href"] for link in page.find_all("a")] == 2 * ["#the-teachers-pass"]


def test_cells_say_what_they_head() -> None:
    table = (
        "<div><style scoped>th{}</style><table><thead><tr><th></th><th>ce</th></tr></thead>"
        "<tbody><tr><th>mean</th><td>1</td></tr></tbody></table></div><table><tr><th>a</th></tr></table>"
    )
    page = soup(table)
    assert [(cell.get_text(), cell.get("scope")) for cell in page.find_all("th")] == [
        ("ce", "col"),
        ("mean", "row"),
        ("a", "col"),
    ]
    assert not page.find("style")
    assert all(found.parent["class"] == ["wide"] for found in page.find_all("table"))


def test_a_table_too_wide_for_paper_is_set_small_there() -> None:
    def box(columns: int) -> list[str]:
        row = "".join(f"<td>number{at:04}</td>" for at in range(columns))
        return soup(f"<table><tr>{row}</tr></table>").div["class"]

    assert box(3) == ["wide"]
    assert box(12) == ["wide", "dense"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a    b    c\n1    2    3", True),
        ("original |a|b|\nand words", False),  # one line of columns
        ("original |a|b|\nextended |a¦b|", True),
        ("C1  a sentence\nC2  another", False),
        ("a    b    " + "c" * 100 + "\n1    2    3", False),
        ("one line", False),
        ("", False),
    ],
)
def test_only_text_in_columns_keeps_its_lines(text: str, kept: bool) -> None:
    assert soup(f"<pre>{text}</pre>").pre.get("class") == (["columns"] if kept else None)
    assert soup(f'<div class="highlight"><pre>{text}</pre></div>').pre.get("class") is None


def test_links_lead_to_pages_of_the_site_or_are_unlinked() -> None:
    assert (
        mended('<a href="b.ipynb#cell-id=The-End">b</a>', b="b.html").body == '<a href="b.html#cell-id=The-End">b</a>'
    )
    links = '<a href="../x/b.ipynb#The-End">b</a> <a href="c.py">c</a> <a href="https://d">d</a> <a href="#E">e</a>'
    page = '<a href="b.html#the-end">b</a> <span class="file" title="c.py">c</span> <a href="https://d">d</a> '
    assert mended(links, b="b.html").body == page + '<a href="#e">e</a>'


def test_pictures_become_files_that_a_tap_shows(tmp_path: Path) -> None:
    content = base64.b64decode(picture())
    (tmp_path / "a b.png").write_bytes(content)
    drawing = "<svg xmlns='http://www.w3.org/2000/svg'/>"
    page = mended(
        f'<img alt="one" src="data:image/png;base64,{picture()}" width="300"><img alt="two" src="a%20b.png">'
        f'<img alt="three" src="data:image/svg+xml;base64,{base64.b64encode(drawing.encode()).decode()}">'
        '<img alt="far away" src="https://example.org/x.png">',
        tmp_path,
    )
    assert dict(page.pictures) == {
        "pictures/page-1.png": content,
        "pictures/page-2.png": content,
        "pictures/page-3.svg": drawing.encode(),
    }
    found = BeautifulSoup(page.body, "html.parser")
    assert [link["href"] for link in found.find_all("a")] == list(page.pictures)
    assert [(image["alt"], image["src"]) for image in found.find_all("img")] == list(
        zip(["one", "two", "three"], page.pictures, strict=True)
    )
    assert found.img["width"] == "300" and "far away" in found.get_text()


def test_a_picture_without_alternative_text_says_so(tmp_path: Path) -> None:
    page = mended(f'<img src="data:image/png;base64,{picture()}"><img alt="" src="data:image/png;base64,{picture()}">')
    alts = [image["alt"] for image in BeautifulSoup(page.body, "html.parser").find_all("img")]
    assert alts == ["No description has been provided for this image", ""]


def test_a_picture_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"absent\.png"):
        mended('<img src="absent.png">', tmp_path)
