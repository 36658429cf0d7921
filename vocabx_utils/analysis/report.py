"""A static web site made from the executed notebooks of a run: readable offline, on a phone and in dark mode.

nbconvert turns cells into HTML. Equations become MathML when the site is built, so no page needs a script or the
network. Links between notebooks become links between pages; a link to a file that is not part of the site is kept
as plain text. `report.html.j2` is the frame of a page, `report.css` its style.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import Environment, pass_context
from latex2mathml.converter import convert
from mistune.plugins.table import table_in_quote
from nbconvert import HTMLExporter, TemplateExporter
from nbconvert.filters.highlight import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.filters.strings import clean_html
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook
from pygments.formatters import HtmlFormatter

from vocabx_utils.analysis.report_front import read_front
from vocabx_utils.analysis.report_html import ReportError, mend_html
from vocabx_utils.files import atomic_path, write_text
from vocabx_utils.paths import STAGES, show_path
from vocabx_utils.runs import MissingStageError, Run
from vocabx_utils.thesis import CITATION, cite


@dataclass(frozen=True)
class Page:
    """One page of the site."""

    title: str  # first heading of the notebook or document
    lead: str  # HTML of the first question, or sentence, of the paragraph right below it
    source: Path  # file it was made from
    body: str  # HTML of the cells, as nbconvert makes it

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
    missing = [stage for stage in STAGES if stage not in {page.name for page in pages}]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"run": run.name, "pages": pages, "stages": STAGES, "cite": cite(), "thesis": CITATION}
    frame = environment.from_string(_resource("report.html.j2")).render
    contents: dict[str, str | bytes] = {"index.html": frame(front=read_front(run), missing=missing)}
    contents["style.css"] = _resource("report.css") + _code_style()
    for before, page, behind in zip([None, *pages], pages, [*pages[1:], None], strict=False):
        mended = mend_html(page.body, page.name, page.source.parent, names)
        contents[names[page.source.name]] = frame(page=page, mended=mended, before=before, behind=behind)
        contents |= mended.pictures
    for name, content in contents.items():
        if isinstance(content, str):
            write_text(folder / name, content)
        else:
            with atomic_path(folder / name) as temporary:
                temporary.write_bytes(content)
    return [folder / name for name in contents]


def _resource(name: str) -> str:
    return (files("vocabx_utils.analysis") / name).read_text(encoding="utf-8")


def _code_style() -> str:
    """The colours of code: one style of pygments for light mode, one for dark mode."""

    def rules(style: str) -> str:
        lines = HtmlFormatter(style=style).get_style_defs(".highlight").splitlines()
        return "\n".join(line for line in lines if line.startswith(".highlight ."))

    return f"{rules('xcode')}\n@media screen and (prefers-color-scheme:dark){{\n{rules('github-dark')}\n}}\n"


def _read_notebook(path: Path) -> NotebookNode:
    try:
        return nbformat.read(path, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, OSError) as error:
        raise ReportError(f"{show_path(path)} cannot be read as a notebook: {error}") from error


def _page(path: Path, notebook: NotebookNode) -> Page:
    text = "".join(cell["source"] for cell in notebook.cells[:1] if cell["cell_type"] == "markdown")
    first, *below = re.split(r"\n\s*\n", text.strip(), maxsplit=2)
    title = first.splitlines()[0].lstrip("# ") if first.startswith("#") else path.stem
    body, _ = _exporter().from_notebook_node(_without_widgets(notebook))
    return Page(title, _render_markdown(_lead(" ".join(below[:1]))), path, body)


def _lead(paragraph: str) -> str:
    """A paragraph up to its first question, or its first sentence; nothing where it is a heading, table, list, code."""
    if re.match(r"[#|*<`\-]|\d+\.", paragraph):
        return ""
    ends = r"(?<=\?)\s" if "?" in paragraph else r"(?<=[.!])\s"
    return re.split(ends, " ".join(paragraph.split()), maxsplit=1)[0]


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
    """Basic cells, with our Markdown, and code as pygments marks it."""

    def default_filters(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        yield from super().default_filters()
        yield "clean_html", _clean

    def from_notebook_node(
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **more: Any
    ) -> tuple[Any, dict[str, Any]]:
        """As HTMLExporter does, but without reading its own HTML again: `mend_html` does."""
        language = nb.metadata.get("language_info", {})
        lexer = language.get("pygments_lexer", language.get("name"))
        highlight = Highlight2HTML(pygments_lexer=lexer, parent=self)
        self.register_filter("highlight_code", lambda *args, **options: _Marked(highlight(*args, **options)))
        return TemplateExporter.from_notebook_node(self, nb, resources, **more)

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        return _render_markdown(source, getattr(context.get("cell", {}), "attachments", {}))


class _Marked(str):
    """Code as pygments has marked it: clean, and to go through it again takes a third of all the time."""


def _clean(body: str) -> str:
    """Clean what others wrote as HTML."""
    return body if isinstance(body, _Marked) else str(clean_html(body))


@lru_cache(maxsize=1)
def _exporter() -> _Exporter:
    """One for all pages: its templates are compiled anew by each exporter."""
    return _Exporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)


class _Renderer(IPythonRenderer):
    """Equations as MathML; what cannot be converted stays readable as its source."""

    def block_math(self, body: str) -> str:
        return f'<div class="equation">{_mathml(body, "block")}</div>'

    def inline_math(self, body: str) -> str:
        return _mathml(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")


def _render_markdown(source: str, attachments: Any = None) -> str:
    markdown = MarkdownWithMath(renderer=_Renderer(escape=False, attachments=attachments))
    table_in_quote(markdown)  # as in JupyterLab and on GitHub
    return str(markdown.render(source))


def _mathml(body: str, display: str) -> str:
    try:
        return str(convert(body.strip(), display=display))
    except Exception:  # the converter raises its own and plain errors on input it does not know
        return f"<code>{html.escape(body.strip())}</code>"
