"""In a real browser: the report offline, on a phone and in dark mode; the explorer inside JupyterLab."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from fixtures.tiny_notebooks import write_notebooks
from fixtures.tiny_series import write_series
from tiny import tiny_decoder

from vocabx_utils.analysis.report import build_report
from vocabx_utils.files import read_json, write_json
from vocabx_utils.models import load_base_model
from vocabx_utils.rows import read_tokens
from vocabx_utils.runs import Run

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "06_mechanistic_analysis.ipynb"
RUNS = os.environ.get("VOCABX_RUNS", str(NOTEBOOK.parents[1] / "runs"))  # before a fixture points it elsewhere
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

CONTRAST = """() => {
  const channel = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 };
  const kept = make => { const made = new Map();
                         return x => { if (!made.has(x)) made.set(x, make(x)); return made.get(x) } };
  const light = kept(c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
                            return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b) });
  const ground = kept(e => { if (!e) return 'rgb(255, 255, 255)';
                             const own = getComputedStyle(e).backgroundColor;
                             return own === 'rgba(0, 0, 0, 0)' ? ground(e.parentElement) : own });
  const ratios = [];
  for (const e of document.querySelectorAll('p, h1, h2, a, td, th, summary, pre, code, .highlight span, math')) {
    if (!e.offsetWidth && !e.getBoundingClientRect().width) continue;
    if (!e.textContent.trim()) continue;
    const a = light(getComputedStyle(e).color), b = light(ground(e));
    ratios.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.tagName + ' ' + e.textContent.slice(0, 30)]);
  }
  return ratios.sort((x, y) => x[0] - y[0])[0];
}"""


EXPLORER_ALT = (
    "Screenshot of the explorer in JupyterLab: boxes to choose run, variant and matrix, a search box with {word!r}, a "
    "slider for the epoch; below them the token's subtokens, its cosine to them by epoch, the nearest original and new "
    "rows, where it occurs, its KL by position, and a map of the new rows."
)
NARROW = """() => [...document.querySelectorAll('td')].filter(
  c => c.textContent.trim().length > 60 && c.textContent.includes(' ') && c.offsetWidth && c.offsetWidth < 90
).map(c => c.textContent.slice(0, 40))"""


SCROLLING = """() => [...document.querySelectorAll('main *')].filter(e => e.scrollWidth > e.clientWidth + 1
  && e.clientWidth && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
  && !e.matches('.wide, .columns, .equation, .vx, [role=figure]')).map(e => e.textContent.slice(0, 60))"""
CUT = """width => [...document.querySelectorAll('main *')].filter(
  e => e.getBoundingClientRect().right > width + 1 && !e.closest('math')).map(e => e.textContent.slice(0, 60))"""
CLOSED = """() => [...document.querySelectorAll('main details')].filter(
  d => [...d.children].some(e => e.tagName !== 'SUMMARY' && !e.checkVisibility())).length"""
PAPER = 680  # width of A4 between margins of 15 mm, in pixels of a style sheet


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as runner:
        found = runner.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """One page without a network for all that a test opens: a page of its own for each costs more than the checks."""
    context = browser.new_context(offline=True)
    yield context.new_page()
    context.close()


def build_site(folder: Path, run: Path, documents: list[Path]) -> list[Path]:
    """The HTML files of a run's report."""
    return [path for path in build_report(Run(run.name, run), folder, documents) if path.suffix == ".html"]


def check_page(page: Any, path: Path, views: list[tuple[int, str]]) -> None:
    """Open one page and check what a reader needs, in each of the views, a width and a colour scheme, and on paper."""
    problems: list[str] = []
    listeners = {
        "console": lambda message: problems.append(message.text) if message.type == "error" else None,
        "pageerror": lambda error: problems.append(str(error)),
        "requestfailed": lambda request: problems.append(f"failed: {request.url}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    show(page, *views[0])
    page.goto(path.as_uri())
    check_links(page, path)
    page.keyboard.press("Tab")
    for at, (width, scheme) in enumerate(views):
        if at:
            show(page, width, scheme)
        check_view(page, path, width=width, scheme=scheme)
    check_paper(page, path)
    assert not problems, f"{path.name}: {problems}"
    for event, listener in listeners.items():
        page.remove_listener(event, listener)


def show(page: Any, width: int, scheme: str) -> None:
    page.emulate_media(media="screen", color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})


def check_links(page: Any, path: Path) -> None:
    """No link is dead, and no equation shows its source."""
    raw = page.evaluate("[...document.querySelectorAll('math')].map(m => m.textContent)")
    unread = [words for words in raw if re.search(r"\\|frac|sqrt|alpha|mathcal|cdot|\$", words)]
    assert not unread, f"{path.name}: equations that show their source: {unread}"
    for link in page.evaluate("[...document.links].map(a => a.href)"):
        target, _, anchor = link.partition("#")
        if target.startswith("file:"):
            file = Path(urllib.request.url2pathname(target.removeprefix("file://")))
            assert file.exists(), f"{path.name}: dead link {link}"
            assert not anchor or f'id="{anchor}"' in file.read_text(), f"{path.name}: dead anchor {link}"


def check_view(page: Any, path: Path, *, width: int, scheme: str) -> None:
    """What a reader sees at one width and in one colour scheme, after one press of the tabulator."""
    broken = page.evaluate(
        "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src.slice(0, 60))"
    )
    assert not broken, f"{path.name}: {broken}"
    unnamed = page.evaluate("[...document.images].filter(i => !i.alt).length")
    assert not unnamed, f"{path.name}: {unnamed} pictures without alternative text"
    scroll = page.evaluate("document.documentElement.scrollWidth")
    assert scroll <= width, f"{path.name}: {scroll} wide on a screen of {width}"
    assert page.evaluate(SCROLLING) == [], f"{path.name} at {width}: blocks other than tables scroll sideways"
    contents = page.get_by_role("navigation", name="Contents").get_by_role("listitem").first
    assert contents.is_visible() == (width > 1000), f"{path.name} at {width}: contents open on a phone or folded beside"
    ratio, where = page.evaluate(CONTRAST)
    assert ratio >= 4.5, f"{path.name}, {scheme}: contrast {ratio:.2f} at {where!r}"
    flat = page.evaluate(
        "[...document.querySelectorAll('math')].filter(m => m.getBoundingClientRect().height < 5).length"
    )
    hidden = page.evaluate("[...document.querySelectorAll('details:not([open]) math')].length")
    assert flat <= hidden, f"{path.name}: {flat} equations without height"
    narrow = page.evaluate(NARROW)
    assert not narrow, f"{path.name} at {width}: cells too narrow to read: {narrow}"
    assert page.evaluate("document.activeElement.textContent") == "Skip to the text", f"{path.name} at {width}"


def check_paper(page: Any, path: Path) -> None:
    """Nothing is cut, hidden or dark on paper."""
    page.set_viewport_size({"width": PAPER, "height": 1000})
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(CUT, PAPER) == [], f"{path.name}: cut at the edge of the paper"
    assert page.evaluate(CLOSED) == 0, f"{path.name}: answers that paper hides"
    assert page.evaluate("getComputedStyle(document.querySelector('main p')).color") == "rgb(0, 0, 0)"
    assert not page.get_by_role("navigation").first.is_visible(), f"{path.name}: contents on paper"


def test_report(tmp_path: Path, page: Any) -> None:
    write_notebooks(tmp_path / "r")
    glossary = tmp_path / "glossary.md"
    glossary.write_text("# Glossary\n\n## KL\n\nA divergence, $\\ge 0$.\n")
    for path in build_site(tmp_path / "site", tmp_path / "r", [glossary]):
        check_page(page, path, [(1280, "light"), (360, "light"), (360, "dark"), (1280, "dark")])


def test_report_of_the_series_itself(tmp_path: Path, page: Any) -> None:
    (tmp_path / "series").mkdir()
    notebooks = list(NOTEBOOK.parent.glob("*.ipynb"))
    for path in notebooks:
        shutil.copy(path, tmp_path / "series")
    documents = sorted((NOTEBOOK.parents[1] / "docs").glob("*.md"))
    pages = build_site(tmp_path / "site", tmp_path / "series", documents)
    assert len(pages) == 1 + len(notebooks) + len(documents)
    for path in pages:
        check_page(page, path, [(1280, "light"), (390, "dark")])


def write_two_runs(folder: Path) -> Path:
    """Write a run `tiny`, and a run `other` of a model of the same width; return the first one's model."""
    models = [write_series(folder), write_series(folder / "second", "other")]
    shutil.move(folder / "second" / "runs" / "other", folder / "runs" / "other")
    torch.manual_seed(5)
    tiny_decoder(263, initializer_range=0.5).save_pretrained(models[1])
    for name, model in zip(("tiny", "other"), models, strict=True):
        run, base = Run(name, folder / "runs" / name), load_base_model(model, device="cpu")
        write_json(run.stage("01") / "key.json", {"model": str(model)})
        for variant in run.variants("03"):
            key = {"model": base.fingerprint, "dtype": "torch.float32"}
            write_json(run.stage("03", variant) / "key.json", key)
    return models[0]


# What is looked at here is the view; the notebook's figures take longer to draw than all the rest of it.
NO_FIGURES = """
def show_figure(figure, *_):
    plt.close(figure)
"""


@pytest.fixture()
def lab(tmp_path: Path) -> Iterator[str]:
    """JupyterLab on notebook 06 with the parameters of a tiny run; yields its address.

    `VOCABX_EXPLORER_RUN=quick` takes that finished run with its model instead, for the screenshot under figures/.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]  # less to lay out
    for code in notebook.cells:
        code.outputs = []
    [cell] = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    real = os.environ.get("VOCABX_EXPLORER_RUN")
    lines = [f"run_name = {real or 'tiny'!r}"]
    if not real:
        lines.append(f"model = {str(write_two_runs(tmp_path))!r}")
        lines.append(NO_FIGURES)
    cell.source = "\n".join([cell.source, *lines])
    nbformat.write(notebook, tmp_path / NOTEBOOK.name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = str(tmp_path / "home")
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": home, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"VOCABX_RUNS": RUNS} if real else {"VOCABX_RUNS": str(tmp_path / "runs"), "HOME": home}
    words = [
        "--no-browser",
        "--allow-root",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--notebook-dir={tmp_path}",
    ]
    words += [
        "--IdentityProvider.token=",
        "--ServerApp.disable_check_xsrf=True",
        "--LabApp.news_url=",
        "--ip=127.0.0.1",
    ]
    words += ["--LabApp.expose_app_in_browser=True"]
    with (tmp_path / "lab.log").open("w") as log:
        command = [sys.executable, "-m", "jupyter", "lab", *words]
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            _wait(f"http://127.0.0.1:{port}/api", server, tmp_path / "lab.log")
            yield f"http://127.0.0.1:{port}/lab/tree/{NOTEBOOK.name}?reset"
        finally:
            server.terminate()
            server.wait(20)


def _wait(address: str, server: subprocess.Popen, log: Path, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=2) as answer:
                json.load(answer)
                return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"JupyterLab did not start: {log.read_text()[-1500:]}")


RUN_ALL = """async () => {
  const app = window.jupyterapp, panel = app.shell.currentWidget;
  await panel.context.sessionContext.ready;
  await app.commands.execute('notebook:run-all-cells');
  const cells = panel.content.widgets;
  const last = cells.findLastIndex(cell => cell.model.type === 'code');
  panel.content.activeCellIndex = last;
  await panel.content.scrollToItem(last, 'start');
  return cells.filter(c => c.model.type === 'code').map(c => c.model.outputs.toJSON()
    .filter(o => o.output_type === 'error').map(o => o.evalue)).flat();
}"""


def test_explorer_in_notebook_06_in_jupyterlab(tmp_path: Path, lab: str, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1300})
    page.set_default_timeout(600_000 if os.environ.get("VOCABX_EXPLORER_RUN") else 120_000)
    page.goto(lab)
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']")
    assert page.evaluate(RUN_ALL) == []
    word = os.environ.get("VOCABX_EXPLORER_TOKEN", "groupby")
    search(page, word)
    wait_for_view(page, word)
    wait_for_view(page, "epoch 2")
    at_last = view(page)
    handle = page.locator(".widget-hslider .noUi-handle").first
    handle.focus()
    handle.press("ArrowLeft")
    wait_for_view(page, "epoch 1")
    assert len(cosines(view(page))) >= 5
    assert cosines(view(page)) != cosines(at_last)
    if target := os.environ.get("VOCABX_SCREENSHOT"):
        page.add_style_tag(content="[class*=Toastify] {display: none}")
        page.locator(".jp-OutputArea", has=page.locator(VIEW)).last.screenshot(path=target)
        texts = Path(target).with_name("alt.json")
        known = read_json(texts) if texts.exists() else {}
        write_json(texts, dict(sorted({**known, Path(target).stem: EXPLORER_ALT.format(word=word)}.items())))
    if not os.environ.get("VOCABX_EXPLORER_RUN"):
        check_search_without_a_hit(page)
        check_run_of_another_model(page, tmp_path)
        check_restart_of_the_kernel(page)
    page.close()


VIEW = ".widget-html .vx"


def view(page: Any) -> str:
    return page.locator(VIEW).inner_text()


def search(page: Any, words: str) -> None:
    box = page.get_by_placeholder("part of a token")
    box.wait_for()
    box.fill(words)
    box.press("Enter")


def wait_for_view(page: Any, words: str) -> None:
    page.wait_for_function(
        f"words => [...document.querySelectorAll('{VIEW}')].some(v => v.innerText.includes(words))",
        arg=words,
        polling=100,  # milliseconds: not every frame, for each look lays the page out
    )


def cosines(words: str) -> list[str]:
    return re.findall(r"-?\d\.\d{3}", words.split("cosine by epoch")[0].split("norm", 1)[1])


def check_search_without_a_hit(page: Any) -> None:
    """A search that finds nothing says so, and the next one works again."""
    search(page, "zzzqq")
    page.locator(".vx-none", has_text="zzzqq").wait_for()
    search(page, "numpy")
    wait_for_view(page, "numpy")


def check_run_of_another_model(page: Any, folder: Path) -> None:
    """A run that was trained on another model is shown beside that model's rows."""
    [token] = [t for t in read_tokens(Run("other", folder / "runs" / "other")) if t.text == " numpy"]
    rows = load_base_model(folder / "second" / "model", device="cpu").input_rows[list(token.subtokens)]
    norms = [f"{norm:.3f}" for norm in rows.norm(dim=1).tolist()]
    assert not set(norms) & set(cosines(view(page)))
    page.locator(".vx-panel select").first.select_option("other")
    page.wait_for_function("document.querySelector('[placeholder=\"part of a token\"]').value === ''")  # it is loaded
    search(page, "numpy")
    wait_for_view(page, norms[0])
    assert set(norms) <= set(cosines(view(page)))


def check_restart_of_the_kernel(page: Any) -> None:
    """After a restart the view says that its boxes no longer work, and its cell works without the others."""
    page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.restart()")
    page.locator(".vx-restart").first.wait_for()
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell').then(() => null)")
    page.locator(".vx-restart").first.wait_for(state="hidden")
    search(page, "groupby")
    wait_for_view(page, "groupby")
