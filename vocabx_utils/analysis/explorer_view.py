"""Show an explorer's answers: as HTML that stays in a saved notebook, and as widgets for a running one.

Class names that tests in a browser may hold on to: `vx` (an answer), `vx-kl` (strip of KL), `vx-map` (picture of the
rows), `vx-panel` (all widgets), `vx-listed` (how many tokens the box lists), `vx-none` (a search without a hit),
`vx-error` (what went wrong), `vx-restart` (shown once the kernel was restarted). Labels of the boxes are in `Panel`.
"""

from __future__ import annotations

import base64
import functools
import html
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vocabx_utils.analysis.explorer import Explorer, TokenView
from vocabx_utils.analysis.explorer_runs import explorable_runs, open_explorer
from vocabx_utils.glyphs import visible
from vocabx_utils.models import BaseModel
from vocabx_utils.names import variant_label
from vocabx_utils.runs import open_run

_DEEP = (1, 60, 120)
"""Colour of the largest KL in a strip; smaller ones are mixed with white, opaque, so that contrast can be checked."""
_THIS, _SUBTOKEN = "#d55e00", "#0173b2"  # each at least 3:1 on white
_EVEN_LUMINANCE = 0.179
"""Black and white ink have equal contrast here, 4.6 to 1 (WCAG 2)."""
_STYLE = (
    "<style>.vx{display:flex;flex-wrap:wrap;gap:12px 28px;background:#fff;color:#222;padding:8px;font-size:13px}"
    ".vx-part{display:block;margin:6px 0 2px;font-size:13px}.vx table{border-collapse:collapse}"
    ".vx td,.vx th{padding:1px 8px;text-align:right;border-bottom:1px solid #ddd;color:#222;background:#fff}"
    ".vx code{background:#f1f1f1;color:#222;white-space:pre;padding:0 2px}.vx .t{text-align:left}"
    ".vx-error,.vx-restart{background:#fff3e6;color:#5c2a00;border-left:4px solid #b35300;padding:6px 10px}"
    ".vx-none{background:#fff;color:#222;padding:6px 10px}"
    # JupyterLab puts this class on every widget whose kernel was restarted; no code of ours can run then
    ".vx-restart{display:none}.jupyter-widgets-disconnected .vx-restart{display:block}"
    ".jupyter-widgets-disconnected .vx{opacity:.4}</style>"
)
_LISTED = 50
"""Tokens that the box lists at most."""


def view_html(view: TokenView) -> str:
    """Lay an `Explorer.view` out as one HTML fragment: tables, a strip of KL by position, and the map.

    It has no scripts or outside references; texts of tokens are escaped, and spelled as in the strips.
    """
    wide = view.cosines.pivot(index="position", columns="epoch", values="cosine")
    course = wide.loc[list(dict.fromkeys(view.cosines["position"]))].rename(columns=str).reset_index()
    parts = {
        "subtokens": _table(view.subtokens, ("text", "id", "cosine", "norm")),
        "cosine by epoch": _table(course),
        "nearest original rows": _table(view.neighbours, ("rank", "text", "cosine")),
        "nearest new rows": _table(view.new_neighbours, ("rank", "text", "cosine")),
        "where it occurs": _occurrences(view),
        "KL by position (nats)": _kl_strip(view.kl),
        "map of the new rows": _map(view.points),
    }
    sections = "".join(f'<div><strong class="vx-part">{title}</strong>{body}</div>' for title, body in parts.items())
    return f'{_STYLE}<div class="vx">{_head(view)}{sections}</div>'


def _head(view: TokenView) -> str:
    facts = (
        f"id {view.token.id}, {view.token.count} occurrences in its corpus",
        f"{variant_label(view.variant)}, epoch {view.epoch}, {view.matrix} row, norm {view.norm:.3f}",
        *view.remarks,
    )
    lines = "<br>".join(html.escape(fact) for fact in facts)
    return f'<div style="flex-basis:100%"><b><code>{_escaped(view.token.text)}</code></b> {lines}</div>'


def _escaped(text: object, limit: int = 24) -> str:
    return html.escape(visible(str(text), limit))


def _table(table: pd.DataFrame, columns: Sequence[str] | None = None) -> str:
    names = list(columns or table.columns)
    if table.empty:
        return "<em>nothing to show</em>"
    head = "".join(f'<th scope="col">{html.escape(str(name))}</th>' for name in names)
    lines = table[names].itertuples(index=False)
    rows = "".join(f"<tr>{''.join(map(_cell, line))}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f'<td class="t"><code>{_escaped(value)}</code></td>'
    if isinstance(value, float | np.floating):
        return f"<td>{value:.3f}</td>" if np.isfinite(value) else "<td>–</td>"
    return f"<td>{value}</td>"


def _occurrences(view: TokenView) -> str:
    if not view.occurrences:
        return "<em>not in the texts at hand</em>"
    lines = [f"{_escaped(o.before, 200)}<b>{_escaped(o.token)}</b>{_escaped(o.behind, 200)}" for o in view.occurrences]
    return "<br>".join(f'<code style="white-space:pre-wrap">{line}</code>' for line in lines)


def _kl_strip(kl: pd.DataFrame) -> str:
    if kl.empty:
        where = "notebook 06 measures the variants in <code>probed</code>, at their first and last epoch"
        return f"<em>not measured for this token and epoch; {where}</em>"
    largest = max(float(kl["kl"].max()), 1e-9)
    cells = []
    for row in kl.itertuples():
        depth = 0.08 + 0.85 * float(str(row.kl)) / largest
        mixed = [round(255 + (dark - 255) * depth) for dark in _DEEP]
        ink = "#fff" if _luminance(mixed) < _EVEN_LUMINANCE else "#000"
        color = "rgb({},{},{})".format(*mixed)
        cells.append(
            f'<td style="background:{color};color:{ink};text-align:center"><span style="white-space:pre">'
            f"{_escaped(row.shown)}</span><br>{row.kl:.3f}</td>"
        )
    return f'<table class="vx-kl"><tr>{"".join(cells)}</tr></table>'


def _luminance(color: Sequence[int]) -> float:
    """Relative luminance of an sRGB colour (WCAG 2), 0 to 1."""
    parts = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in color)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _map(points: pd.DataFrame, width: int = 320, height: int = 240) -> str:
    """Draw the map as a picture: pages that take SVG out of a notebook would leave its words behind as stray text."""
    x, y = (_scaled(points[axis].to_numpy(dtype=float), size) for axis, size in (("x", width), ("y", height)))
    y = height - y
    new = (points["kind"] == "new").to_numpy()
    chosen = int(points["token"].to_numpy()[~new][0])
    dots = "".join(f'<circle cx="{a:.0f}" cy="{b:.0f}" r="2.5"/>' for a, b in zip(x[new], y[new], strict=True))
    marks = []
    for at in [chosen, *np.flatnonzero(~new).tolist()]:
        if new[at]:
            marks.append(f'<circle cx="{x[at]:.0f}" cy="{y[at]:.0f}" r="6" fill="{_THIS}"/>')
            under = -8  # labels of the token and of its subtokens lie apart, for the rows are often close
        else:
            corner = f'x="{x[at] - 5:.0f}" y="{y[at] - 5:.0f}"'
            marks.append(f'<rect {corner} width="10" height="10" fill="{_SUBTOKEN}"/>')
            under = 16
        label = _escaped(points["label"].iloc[at])
        marks.append(f'<text x="{x[at] + 8:.0f}" y="{y[at] + under:.0f}" font-size="11">{label}</text>')
    title = f"two principal directions of {int(new.sum())} new rows; circle: this token; squares: its subtokens"
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 70}" height="{height + 16}" '
        f'viewBox="-8 -8 {width + 70} {height + 16}" font-family="sans-serif">'
        f'<rect x="-8" y="-8" width="100%" height="100%" fill="#fff"/><g fill="#888">{dots}</g>{"".join(marks)}</svg>'
    )
    source = base64.b64encode(drawn.encode()).decode()
    picture = f'<img class="vx-map" alt="{title}" src="data:image/svg+xml;base64,{source}" style="max-width:100%">'
    return f"{picture}<br><small>{title}</small>"


def _scaled(values: np.ndarray, size: int) -> np.ndarray:
    low, high = values.min(), values.max()
    return (values - low) / (high - low if high > low else 1) * size


def explore(opened: Explorer | None = None, token: int = 0, base: BaseModel | None = None) -> Any:
    """Show the interactive explorer of every run with rows of phase 1; it needs no earlier cell of a notebook.

    Args:
        opened: an explorer that is at hand, shown first; by default the run that was analysed last is read.
        token: index of the token to begin with.
        base: a loaded model, so that runs that were trained on it need not load it again.

    Returns:
        The widgets, or where no run has rows yet HTML that says which notebooks make them.
    """
    from IPython.display import HTML

    names = list(dict.fromkeys([*([opened.run] if opened else []), *explorable_runs()]))
    if not names:
        words = (
            "No run has trained rows yet. Run the notebooks 01 to 03 (<code>vocabx run</code>), then this cell again."
        )
        return HTML(f'{_STYLE}<p class="vx-error">{words}</p>')

    def load(name: str) -> Explorer:
        return opened if opened and name == opened.run else open_explorer(open_run(name), base)

    return Panel(load, names, token).box


def _told(act: Callable[[Panel], None]) -> Callable[..., None]:
    """Show in the view what an act raises: what a callback of a widget raises would otherwise end in a log unseen."""

    @functools.wraps(act)
    def tell(panel: Panel, _: Any = None) -> None:
        try:
            act(panel)
        except Exception as error:  # whatever it is, a reader has to see it
            panel.fail(error)

    return tell


class Panel:
    """The interactive explorer, an ipywidgets `box`: choices, search, epoch, and the view below them.

    Args:
        load: returns the explorer of a run by name; called when a run is chosen. What it raises is shown in the view.
        runs: names to choose from, at least one; the first one is loaded now.
        token: index of the token to begin with.
    """

    def __init__(self, load: Callable[[str], Explorer], runs: Sequence[str], token: int = 0) -> None:
        import ipywidgets as w

        self._load, self._quiet = load, True
        self._wanted = math.inf  # the epoch that was chosen by hand, which variants with fewer epochs do not change
        self.explorer: Explorer | None = None
        wide: dict[str, Any] = {"layout": w.Layout(width="320px"), "style": {"description_width": "85px"}}
        late = wide | {"continuous_update": False}
        self.run = w.Dropdown(options=list(runs), description="Run", tooltip="Choose a run", **wide)
        self.variant = w.Dropdown(description="Objective", tooltip="Choose a variant of phase 1", **wide)
        self.matrix = w.ToggleButtons(
            options=["input", "head"], description="Rows", tooltips=["input embedding rows", "head rows"]
        )
        self.search = w.Text(
            description="Find token",
            placeholder="part of a token",
            tooltip="Type a part of a token, then Enter",
            **late,
        )
        self.token = w.Dropdown(description="Token", tooltip="Choose one of the tokens found", **wide)
        self.epoch = w.IntSlider(min=0, max=0, description="Epoch", tooltip="Choose an epoch", **late)
        self.listed, self.out, self.restart = w.HTML(), w.HTML(), w.HTML(_RESTART)
        self.run.observe(self._open, names="value")
        self.search.observe(self._find, names="value")
        self.epoch.observe(self._choose_epoch, names="value")
        for widget in (self.variant, self.matrix, self.token):
            widget.observe(self._show, names="value")
        rows = [w.HBox([self.run, self.variant]), w.HBox([self.search, self.token]), w.HBox([self.epoch, self.matrix])]
        self.box = w.VBox([*rows, self.listed, self.restart, self.out])
        self.box.add_class("vx-panel")
        self._open()
        if token in [at for _, at in self.token.options]:
            self.token.value = token

    @_told
    def _open(self) -> None:
        self._quiet, self.explorer, self._wanted = True, None, math.inf
        self.out.value = f"<em>Reading run {html.escape(self.run.value)} …</em>"
        self.variant.options, self.token.options, self.listed.value = [], [], ""
        self.explorer = self._load(self.run.value)
        self.variant.options = [(variant_label(name), name) for name in self.explorer.histories]
        self.variant.value = self.explorer.preferred
        self.search.value = ""
        self._find()

    @_told
    def _find(self) -> None:
        if self.explorer is None:
            return
        words, chosen = self.search.value, self.token.value
        found = self.explorer.search(words)
        shown = found[:_LISTED]
        self._quiet = True
        self.token.options = [(visible(self.explorer.tokens[at].text), at) for at in shown]
        if shown:  # after an empty list the box chooses nothing by itself
            self.token.value = chosen if chosen in shown else shown[0]
        told = f"The box lists {len(found)} of {len(self.explorer.tokens)} new tokens"
        told += f", those that contain '{html.escape(visible(words))}'." if words else "."
        if len(shown) < len(found):
            told = f"The box lists {len(shown)} of the {len(found)} tokens found: "
            told += "type more of a token to see the others."
        self.listed.value = f'<span class="vx-listed" role="status">{told if shown else ""}</span>'
        self._quiet = False
        self._show()

    @_told
    def _choose_epoch(self) -> None:
        if not self._quiet:
            self._wanted = self.epoch.value
            self._show()

    @_told
    def _show(self) -> None:
        if self._quiet or self.explorer is None:
            return
        if self.token.value is None:
            words = html.escape(visible(self.search.value))
            told = f"no new token contains '{words}'; empty the box to list all {len(self.explorer.tokens)}"
            self.out.value = f'{_STYLE}<p class="vx-none">{told}</p>'
            return
        last = self.explorer.histories[self.variant.value].last
        self._quiet = True
        self.epoch.max, self.epoch.disabled = last, last == 0
        self.epoch.value = int(min(self._wanted, last))
        self._quiet = False
        view = self.explorer.view(self.variant.value, self.token.value, self.epoch.value, self.matrix.value)
        self.out.value = view_html(view)

    def fail(self, error: Exception) -> None:
        """Say in the view what went wrong; another choice begins anew."""
        self._quiet = False
        kind = "" if isinstance(error, ValueError | RuntimeError) else f"{type(error).__name__}: "
        words = html.escape(f"Run {self.run.value!r} cannot be shown. {kind}{error}")
        self.out.value = f'{_STYLE}<p class="vx-error" role="alert">{words}</p>'


_RESTART = (
    f'{_STYLE}<p class="vx-restart" role="alert">The kernel was restarted, so these boxes no longer reach it. '
    "Run this cell again: it works without the others.</p>"
)
