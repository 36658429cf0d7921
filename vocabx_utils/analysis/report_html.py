"""Mend the HTML that nbconvert makes of a notebook: what a reader without a mouse, a wide screen or a network needs.

nbconvert keeps what it finds. Here headings lose gaps in their levels and get anchors of their own, cells of tables say
what they head, wide tables get a box that scrolls by itself, pictures become files that a tap shows in full size, and
links lead to pages of the site or are unlinked.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote
from urllib.request import urlopen

from bs4 import BeautifulSoup, Tag

from vocabx_utils.paths import project_root, show_path

_OUTSIDE = ("http://", "https://", "mailto:")
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)|[|\u00a6]")  # between two columns of text
_PAPER, _SCREEN = 90, 100
"""Characters that fit beside one another: in a printed table, and on a screen, beyond which nobody reads columns."""
_HEADINGS = re.compile("^h[1-6]$")


class ReportError(ValueError):
    """The site cannot be built from what is there."""


@dataclass(frozen=True)
class Mended:
    """A page's HTML, its second-level headings as (anchor, text), and the pictures that it shows, by file name."""

    body: str
    sections: tuple[tuple[str, str], ...]
    pictures: Mapping[str, bytes]


def mend_html(body: str, name: str, folder: Path, pages: Mapping[str, str]) -> Mended:
    """Mend the HTML of one page.

    Args:
        name: file name of the page without extension; its pictures are called after it.
        folder: where its source lies; pictures are found from there, or from the notebooks.
        pages: file name of each source of the site, and of the page made from it.

    Raises:
        ReportError: a picture is not there.
    """
    soup = BeautifulSoup(body, "html.parser")
    for style in soup.find_all("style", scoped=True):  # pandas repeats its own with every table
        style.decompose()
    sections = _settle_headings(soup)
    _say_what_cells_head(soup)
    _box_tables(soup)
    _mark_columns(soup)
    for link in soup.find_all("a", href=True):
        _settle_link(soup, link, pages)
    pictures = _take_pictures(soup, name, folder)
    return Mended(str(soup), sections, pictures)


def _settle_headings(soup: BeautifulSoup) -> tuple[tuple[str, str], ...]:
    """Close gaps between levels, make anchors those of GitHub and unlike one another; return those of second level."""
    level, used, sections = 0, set[str](), []
    for heading in soup.find_all(_HEADINGS):
        for mark in heading.find_all(class_="anchor-link"):
            mark.decompose()
        level = min(int(heading.name[1]), level + 1)
        heading.name = f"h{level}"
        anchor = stem = _settled(str(heading.get("id") or ""))
        number = 1
        while anchor in used:
            number += 1
            anchor = f"{stem}-{number}"
        if anchor:
            heading["id"] = anchor
            used.add(anchor)
        if level == 2 and anchor:
            sections.append((anchor, heading.get_text().strip()))
    return tuple(sections)


def _settled(anchor: str) -> str:
    """Both forms of a heading's anchor as one: JupyterLab keeps capitals and punctuation, GitHub does not."""
    return re.sub(r"[^\w-]", "", anchor.lower())


def _say_what_cells_head(soup: BeautifulSoup) -> None:
    for cell in soup.find_all("th"):
        if not cell.get_text().strip():  # the corner of a table heads nothing
            cell.name = "td"
        elif not cell.get("scope"):
            among_heads = not cell.find_next_siblings("td") and not cell.find_previous_siblings("td")
            cell["scope"] = "col" if cell.find_parent("thead") or among_heads else "row"


def _box_tables(soup: BeautifulSoup) -> None:
    """A box that scrolls keeps a wide table in its column; the table itself stays one for screen readers."""
    for table in soup.find_all("table"):
        if not (table.find_parent("table") or table.find_parent(attrs={"role": "figure"})):
            dense = " dense" if _narrowest(table) > _PAPER else ""
            table.wrap(soup.new_tag("div", attrs={"class": f"wide{dense}"}))


def _narrowest(table: Tag) -> int:
    """Characters beside one another that a table needs if no word of it is broken."""
    columns: dict[int, int] = {}
    for row in table.find_all("tr"):
        for at, cell in enumerate(row.find_all(["th", "td"], recursive=False)):
            longest = max((len(word) for word in cell.get_text().split()), default=0)
            columns[at] = max(columns.get(at, 0), longest + 2)
    return sum(columns.values())


def _mark_columns(soup: BeautifulSoup) -> None:
    """Text in columns must not be wrapped; other output and code may."""
    for text in soup.find_all("pre"):
        lines = text.get_text().splitlines()
        in_columns = sum(len(_GAP.findall(line)) > 1 for line in lines) > 1 and max(map(len, lines)) <= _SCREEN
        if in_columns and not text.find_parent(class_="highlight"):
            text["class"] = "columns"


def _settle_link(soup: BeautifulSoup, link: Tag, pages: Mapping[str, str]) -> None:
    target = str(link["href"])
    if target.startswith(_OUTSIDE):
        return
    path, _, anchor = target.partition("#")
    page = pages.get(Path(unquote(path)).name) if path else ""
    if page is None:
        link.name, link.attrs = "span", {"class": "file", "title": target}
    else:
        # JupyterLab finds a cell more surely than a heading, and nbconvert gives cells the same anchors.
        settled = anchor if anchor.startswith("cell-id=") else _settled(unquote(anchor))
        link["href"] = page + (f"#{settled}" if anchor else "")


def _take_pictures(soup: BeautifulSoup, name: str, folder: Path) -> dict[str, bytes]:
    """Replace each picture by a link to its file, so that a tap on a small screen shows it in full size."""
    pictures: dict[str, bytes] = {}
    for picture in soup.find_all("img", src=True):
        if str(picture["src"]).startswith(_OUTSIDE):  # a page asks nothing of the network
            picture.replace_with(str(picture.get("alt") or picture["src"]))
            continue
        kind, content = _read_picture(str(picture["src"]), folder)
        file = f"pictures/{name}-{len(pictures) + 1}{mimetypes.guess_extension(kind) or ''}"
        pictures[file] = content
        picture["src"] = file
        picture.attrs.setdefault("alt", "No description has been provided for this image")
        if not picture.find_parent("a"):
            picture.wrap(soup.new_tag("a", href=file, attrs={"class": "picture"}))
    return pictures


def _read_picture(source: str, folder: Path) -> tuple[str, bytes]:
    if source.startswith("data:"):
        with urlopen(source) as content:
            return content.headers.get_content_type(), content.read()
    for place in (folder / unquote(source), project_root() / "notebooks" / unquote(source)):
        if place.is_file():
            return mimetypes.guess_type(place.name)[0] or "", place.read_bytes()
    raise ReportError(f"The picture {source!r} is not below {show_path(folder)} or the notebooks.")
