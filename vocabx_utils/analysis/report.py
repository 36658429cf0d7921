"""A static web site made from the executed notebooks of a run: readable offline, on a phone and in dark mode.

nbconvert turns cells into HTML. Equations become MathML when the site is built, so no page needs a script or the
network. Links between notebooks become links between pages; a link to a file that is not part of the site is kept
as plain text. `report.html.j2` is the frame of a page, `report.css` its style.
"""

from __future__ import annotations

import base64
import html
import mimetypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
from jinja2 import Environment, pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook
from pygments.formatters import HtmlFormatter

from vocabx_utils.files import write_text
from vocabx_utils.paths import STAGES, project_root, show_path
from vocabx_utils.runs import MissingStageError, Run

_OUTSIDE = ("http://", "https://", "mailto:", "data:")


class ReportError(ValueError):
    """The site cannot be built from what is there."""


@dataclass(frozen=True)
class Page:
    """One page of the site."""

    title: str  # first heading of the notebook or document
    lead: str  # HTML of the first sentence below it
    source: Path  # file it was made from
    body: str  # HTML of the cells
    sections: tuple[tuple[str, str], ...]  # (anchor, text) of its second-level headings

    @property
    def name(self) -> str:
        """File name without extension."""
        return self.source.stem


def build_report(run: Run, folder: Path, extra: Sequence[Path] = ()) -> list[Path]:
    """Build the site of a run in a folder, Markdown files such as the glossary included; `index.html` comes first.

    Raises:
        MissingStageError: the run holds no executed notebook.
        ReportError: a notebook cannot be read.
    """
    sources = [path for stage in STAGES for path in sorted(run.folder.glob(f"{stage}.ipynb"))]
    if not sources:
        raise MissingStageError(
            f"{show_path(run.folder)} holds no executed notebook. `vocabx run --run-name {run.name}` makes them."
        )
    pages = [_page(path, _read_notebook(path)) for path in sources]
    for path in filter(Path.is_file, extra):
        text = new_markdown_cell(path.read_text(encoding="utf-8"), id="text")
        pages.append(_page(path, new_notebook(cells=[text])))
    names = {page.source.name: f"{page.name}.html" for page in pages}
    frame = Environment(autoescape=True).from_string(_resource("report.html.j2")).render
    missing = [stage for stage in STAGES if stage not in {page.name for page in pages}]
    contents = {"index.html": frame(run=run.name, pages=pages, missing=missing)}
    contents["style.css"] = _resource("report.css") + _code_style()
    for before, page, behind in zip([None, *pages], pages, [*pages[1:], None], strict=False):
        body = _settle_links(page.body, page.source.parent, names)
        contents[names[page.source.name]] = frame(page=page, pages=pages, body=body, before=before, behind=behind)
    for name, text in contents.items():
        write_text(folder / name, text)
    return [folder / name for name in contents]


def _resource(name: str) -> str:
    return (files("vocabx_utils.analysis") / name).read_text(encoding="utf-8")


def _code_style() -> str:
    """The colours of code: one style of pygments for light mode, one for dark mode."""

    def rules(style: str) -> str:
        lines = HtmlFormatter(style=style).get_style_defs(".highlight").splitlines()
        return "\n".join(line for line in lines if line.startswith(".highlight ."))

    return f"{rules('xcode')}\n@media (prefers-color-scheme:dark){{\n{rules('github-dark')}\n}}\n"


def _read_notebook(path: Path) -> NotebookNode:
    try:
        return nbformat.read(path, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, OSError) as error:
        raise ReportError(f"{show_path(path)} cannot be read as a notebook: {error}") from error


def _page(path: Path, notebook: NotebookNode) -> Page:
    text = "".join(cell["source"] for cell in notebook.cells[:1] if cell["cell_type"] == "markdown")
    heading = next((line.strip() for line in text.splitlines() if line.strip()), "")
    title = heading.lstrip("# ") if heading.startswith("#") else path.stem
    exporter = _Exporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)
    body, _ = exporter.from_notebook_node(_without_widgets(notebook))
    body = re.sub(r'(<h\d id=")([^"]+)(")', lambda m: m[1] + m[2].lower() + m[3], body)
    sections = re.findall(r'<h2 id="([^"]+)"[^>]*>(.*?)(?:<a class="anchor-link"[^>]*>.*?</a>)?</h2>', body, re.DOTALL)
    lead = _render_markdown(_first_sentence(text))
    return Page(title, lead, path, body, tuple((anchor, _plain(words)) for anchor, words in sections))


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
        cell["outputs"] = [output for output in cell["outputs"] if output.get("name") != "stderr"]
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "application/vnd.jupyter.widget-view+json" in data:
                output["data"] = {"text/html": "<p><em>An interactive view: open the notebook to use it.</em></p>"}
            data.pop("application/javascript", None)
    notebook.metadata.pop("widgets", None)
    return notebook


class _Exporter(HTMLExporter):
    """Basic cells, with our Markdown."""

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        return _render_markdown(source, getattr(context.get("cell", {}), "attachments", {}))


class _Renderer(IPythonRenderer):
    """Equations as MathML; what cannot be converted stays readable as its source."""

    def block_math(self, body: str) -> str:
        return f'<div class="equation">{_mathml(body, "block")}</div>'

    def inline_math(self, body: str) -> str:
        return _mathml(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")


def _render_markdown(source: str, attachments: Any = None) -> str:
    return str(MarkdownWithMath(renderer=_Renderer(escape=False, attachments=attachments)).render(source))


def _mathml(body: str, display: str) -> str:
    try:
        return str(convert(body.strip(), display=display))
    except Exception:  # the converter raises its own and plain errors on input it does not know
        return f"<code>{html.escape(body.strip())}</code>"


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
    place = f"#{anchor.lower()}" if anchor else ""
    attributes = match[0][: match[0].index(">")].replace(f'"{target}"', f'"{page}{place}"')
    return f"{attributes}>{words}</a>"


def _inline(source: str, folder: Path) -> str:
    if source.startswith(_OUTSIDE):
        return source
    for place in (folder / unquote(source), project_root() / "notebooks" / unquote(source)):
        if place.is_file():
            kind = mimetypes.guess_type(place.name)[0] or "application/octet-stream"
            return f"data:{kind};base64,{base64.b64encode(place.read_bytes()).decode()}"
    raise ReportError(f"The image {source!r} is not below {show_path(folder)} or the notebooks.")
