"""A static web site made from the executed notebooks of a run: readable offline, on a phone and in dark mode.

nbconvert turns cells into HTML. Equations become MathML when the site is built, so no page needs a script or the
network. Links between notebooks become links between pages; a link to a file that is not part of the site is kept
as plain text.
"""

from __future__ import annotations

import base64
import html
import mimetypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from vocabx_utils.analysis.report_style import STYLE, code_style
from vocabx_utils.files import write_text
from vocabx_utils.paths import STAGES, project_root, show_path
from vocabx_utils.runs import MissingStageError, Run

if TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["Page", "ReportError", "build_report"]

_OUTSIDE = ("http://", "https://", "mailto:", "data:")


class ReportError(ValueError):
    """The site cannot be built from what is there."""


@dataclass(frozen=True)
class Page:
    """One page of the site.

    Attributes:
        name: file name without extension.
        title: first heading of the notebook.
        lead: the sentence below it.
        source: file it was made from.
        body: HTML of the cells.
        sections: (anchor, text) of its second-level headings.
    """

    name: str
    title: str
    lead: str
    source: Path
    body: str
    sections: tuple[tuple[str, str], ...]


def build_report(run: Run, folder: Path, extra: Sequence[Path] = ()) -> list[Path]:
    """Build the site of a run.

    Args:
        run: a run with executed notebooks in its folder.
        folder: where the site goes; `index.html` is its first page.
        extra: Markdown files that become pages too, such as the glossary.

    Returns:
        The files written, `index.html` first.

    Raises:
        MissingStageError: the run holds no executed notebook.
        ReportError: a notebook cannot be read.
    """
    sources = [path for stage in STAGES for path in sorted(run.folder.glob(f"{stage}.ipynb"))]
    if not sources:
        raise MissingStageError(
            f"{show_path(run.folder)} holds no executed notebook. `vocabx run --run-name {run.name}` makes them."
        )
    pages = [_notebook_page(path) for path in sources] + [_markdown_page(path) for path in extra if path.is_file()]
    names = {page.source.name: f"{page.name}.html" for page in pages}
    written = [folder / "index.html", folder / "style.css"]
    write_text(written[0], _shell("index", f"Run {run.name}", _index_body(run, pages), pages))
    write_text(written[1], STYLE + code_style())
    for at, page in enumerate(pages):
        body = _settle_links(page.body, page.source.parent, names)
        around = (pages[at - 1] if at else None, pages[at + 1] if at + 1 < len(pages) else None)
        path = folder / f"{page.name}.html"
        write_text(path, _shell(page.name, page.title, _steps(*around) + body + _steps(*around), pages, page.sections))
        written.append(path)
    return written


# --- pages ---------------------------------------------------------------------------------------------------


def _notebook_page(path: Path) -> Page:
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, OSError) as error:
        raise ReportError(f"{show_path(path)} cannot be read as a notebook: {error}") from error
    body, _ = _exporter().from_notebook_node(_without_widgets(notebook))
    heading = "\n".join("".join(cell["source"]) for cell in notebook.cells[:1] if cell["cell_type"] == "markdown")
    return _page(path, heading, body)


def _markdown_page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    return _page(path, text, f'<div class="text">{_render_markdown(text)}</div>')


def _page(path: Path, text: str, body: str) -> Page:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    title = lines[0].lstrip("# ") if lines and lines[0].startswith("#") else path.stem
    lead = _first_sentence(text)
    body = re.sub(r'(<h\d id=")([^"]+)(")', lambda m: m[1] + m[2].lower() + m[3], body)
    sections = re.findall(r'<h2 id="([^"]+)"[^>]*>(.*?)(?:<a class="anchor-link"[^>]*>.*?</a>)?</h2>', body, re.DOTALL)
    return Page(path.stem, title, lead, path, body, tuple((anchor, _plain(words)) for anchor, words in sections))


def _first_sentence(text: str) -> str:
    """The first sentence of the first paragraph that is neither heading, table, list nor code."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    for paragraph in paragraphs:
        if paragraph and not re.match(r"[#|*<\-]|\d+\.", paragraph):
            return re.split(r"(?<=[.?!])\s", paragraph, maxsplit=1)[0]
    return ""


def _plain(fragment: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", fragment)).strip()


def _without_widgets(notebook: NotebookNode) -> NotebookNode:
    """Drop widget views and error streams: without a kernel the first show nothing, the second are no results."""
    for cell in notebook.cells:
        if cell["cell_type"] != "code":
            continue
        kept = [output for output in cell["outputs"] if output.get("name") != "stderr"]
        for output in kept:
            data = output.get("data", {})
            if "application/vnd.jupyter.widget-view+json" in data:
                output["data"] = {"text/html": "<p><em>An interactive view: open the notebook to use it.</em></p>"}
            data.pop("application/javascript", None)
        cell["outputs"] = kept
    notebook.metadata.pop("widgets", None)
    return notebook


def _exporter() -> Any:
    from jinja2 import pass_context
    from nbconvert import HTMLExporter

    class Exporter(HTMLExporter):
        """Basic cells, with our Markdown."""

        @pass_context
        def markdown2html(self, context: Any, source: str) -> str:
            attachments = getattr(context.get("cell", {}), "attachments", {})
            return _render_markdown(source, attachments)

    return Exporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)


def _render_markdown(source: str, attachments: Any = None) -> str:
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        """Equations as MathML; what cannot be converted stays readable as its source."""

        def block_math(self, body: str) -> str:
            return f'<div class="equation">{_mathml(body, "block")}</div>'

        def inline_math(self, body: str) -> str:
            return _mathml(body, "inline")

        def latex_environment(self, name: str, body: str) -> str:
            return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")

    return str(MarkdownWithMath(renderer=Renderer(escape=False, attachments=attachments)).render(source))


def _mathml(body: str, display: str) -> str:
    from latex2mathml.converter import convert

    try:
        return str(convert(body.strip(), display=display))
    except Exception:  # the converter raises its own and plain errors on input it does not know
        return f"<code>{html.escape(body.strip())}</code>"


# --- links and images ------------------------------------------------------------------------------------------


def _settle_links(body: str, folder: Path, names: dict[str, str]) -> str:
    """Point links at pages of the site, put local images into the page, and unlink what the site does not hold."""
    body = re.sub(r'<a\b[^>]*?href="([^"]*)"[^>]*>(.*?)</a>', lambda m: _settle_link(m, names), body, flags=re.DOTALL)
    return re.sub(r'(<img\b[^>]*?src=")([^"]*)(")', lambda m: m[1] + _inline(m[2], folder) + m[3], body)


def _settle_link(match: re.Match[str], names: dict[str, str]) -> str:
    target, words = match[1], match[2]
    if target.startswith(_OUTSIDE):
        return match[0]
    path, _, anchor = target.partition("#")
    page = names.get(Path(unquote(path)).name) if path else ""
    if page is None:
        return f'<span class="file" title="{html.escape(target)}">{words}</span>'
    # JupyterLab keeps capitals in anchors and GitHub does not; here both forms find the heading
    attributes = match[0][: match[0].index(">")].replace(
        f'"{target}"', f'"{page}{"#" + anchor.lower() if anchor else ""}"'
    )
    return f"{attributes}>{words}</a>"


def _inline(source: str, folder: Path) -> str:
    if source.startswith(_OUTSIDE):
        return source
    for place in (folder / unquote(source), project_root() / "notebooks" / unquote(source)):
        if place.is_file():
            kind = mimetypes.guess_type(place.name)[0] or "application/octet-stream"
            return f"data:{kind};base64,{base64.b64encode(place.read_bytes()).decode()}"
    raise ReportError(f"The image {source!r} is not below {show_path(folder)} or the notebooks.")


# --- the frame of a page -----------------------------------------------------------------------------------------


def _index_body(run: Run, pages: Sequence[Page]) -> str:
    rows = "".join(
        f'<li><a href="{page.name}.html">{html.escape(page.title)}</a><br>{_render_markdown(page.lead)}</li>'
        for page in pages
    )
    missing = [stage for stage in STAGES if stage not in {page.name for page in pages}]
    note = f"<p>Not part of this run: {', '.join(missing)}.</p>" if missing else ""
    return f'<h1>Vocabulary expansion: run {html.escape(run.name)}</h1><ol class="contents" start="0">{rows}</ol>{note}'


def _steps(before: Page | None, behind: Page | None) -> str:
    left = f'<a rel="prev" href="{before.name}.html">← {html.escape(before.title)}</a>' if before else "<span></span>"
    right = f'<a rel="next" href="{behind.name}.html">{html.escape(behind.title)} →</a>' if behind else ""
    return f'<nav class="steps" aria-label="previous and next">{left}{right}</nav>'


def _shell(name: str, title: str, body: str, pages: Sequence[Page], sections: Sequence[tuple[str, str]] = ()) -> str:
    inner = "".join(f'<li><a href="#{anchor}">{html.escape(words)}</a></li>' for anchor, words in sections)
    items = "".join(
        f'<li{" class=here" if page.name == name else ""}><a href="{page.name}.html">{html.escape(page.title)}</a>'
        f"{f'<ul>{inner}</ul>' if page.name == name and inner else ''}</li>"
        for page in pages
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f'<title>{html.escape(title)}</title><link rel="stylesheet" href="style.css"></head><body>'
        '<details class="side" open><summary>Contents</summary><nav aria-label="contents">'
        f'<a href="index.html">Start</a><ul>{items}</ul></nav></details>'
        f"<main>{body}</main></body></html>\n"
    )
