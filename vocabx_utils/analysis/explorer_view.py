"""Show an explorer's answers: as HTML that stays in a saved notebook, and as widgets for a running one."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vocabx_utils.analysis.explorer import Explorer, TokenView
from vocabx_utils.names import variant_label

_DEEP = (1, 60, 120)
"""Colour of the largest KL in a strip; smaller ones are mixed with white, opaque, so that contrast can be checked."""
_THIS, _SUBTOKEN = "#d55e00", "#0173b2"  # of the palette of all figures
_EVEN_LUMINANCE = 0.179
"""Black and white ink have equal contrast here, 4.6 to 1 (WCAG 2)."""
_STYLE = (
    "<style>.vx{display:flex;flex-wrap:wrap;gap:12px 28px;background:#fff;color:#222;padding:8px;font-size:13px}"
    ".vx h4{margin:6px 0 2px;font-size:13px}.vx table{border-collapse:collapse}"
    ".vx td,.vx th{padding:1px 8px;text-align:right;border-bottom:1px solid #ddd;color:#222;background:#fff}"
    ".vx code{background:#f1f1f1;color:#222;white-space:pre;padding:0 2px}.vx .t{text-align:left}</style>"
)


def view_html(view: TokenView) -> str:
    """Lay an `Explorer.view` out as one HTML fragment: tables, a strip of KL by position, and the map as SVG.

    It has no scripts or outside references; texts of tokens are escaped.
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
        "map of the new rows": _map_svg(view.points),
    }
    sections = "".join(f"<div><h4>{title}</h4>{body}</div>" for title, body in parts.items())
    return f'{_STYLE}<div class="vx">{_head(view)}{sections}</div>'


def _head(view: TokenView) -> str:
    facts = (
        f"id {view.token.id}, {view.token.count} occurrences in its corpus",
        f"{variant_label(view.variant)}, epoch {view.epoch}, {view.matrix} row, norm {view.norm:.3f}",
        *view.remarks,
    )
    lines = "<br>".join(html.escape(fact) for fact in facts)
    return f'<div style="flex-basis:100%"><b><code>{_escaped(view.token.text)}</code></b> {lines}</div>'


def _escaped(text: object) -> str:
    return html.escape(repr(text)[1:-1])


def _table(table: pd.DataFrame, columns: Sequence[str] | None = None) -> str:
    names = list(columns or table.columns)
    if table.empty:
        return "<em>nothing to show</em>"
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in names)
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
    lines = [f"{_escaped(o.before)}<b>{_escaped(o.token)}</b>{_escaped(o.behind)}" for o in view.occurrences]
    return "<br>".join(f'<code style="white-space:pre-wrap">{line}</code>' for line in lines)


def _kl_strip(kl: pd.DataFrame) -> str:
    if kl.empty:
        return "<em>not measured for this token and epoch</em>"
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
    return f"<table><tr>{''.join(cells)}</tr></table>"


def _luminance(color: Sequence[int]) -> float:
    """Relative luminance of an sRGB colour (WCAG 2), 0 to 1."""
    parts = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in color)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _map_svg(points: pd.DataFrame, width: int = 320, height: int = 240) -> str:
    x, y = (_scaled(points[axis].to_numpy(dtype=float), size) for axis, size in (("x", width), ("y", height)))
    y = height - y
    new = (points["kind"] == "new").to_numpy()
    chosen = int(points["token"].to_numpy()[~new][0])
    dots = "".join(f'<circle cx="{a:.0f}" cy="{b:.0f}" r="2.5"/>' for a, b in zip(x[new], y[new], strict=True))
    marks = []
    for at in [chosen, *np.flatnonzero(~new).tolist()]:
        if new[at]:
            marks.append(f'<circle cx="{x[at]:.0f}" cy="{y[at]:.0f}" r="6" fill="{_THIS}"/>')
        else:
            corner = f'x="{x[at] - 5:.0f}" y="{y[at] - 5:.0f}"'
            marks.append(f'<rect {corner} width="10" height="10" fill="{_SUBTOKEN}"/>')
        label = _escaped(points["label"].iloc[at])
        marks.append(f'<text x="{x[at] + 8:.0f}" y="{y[at] + 4:.0f}" font-size="11">{label}</text>')
    title = f"two principal directions of {int(new.sum())} new rows; circle: this token; squares: its subtokens"
    return (
        f'<svg width="{width}" height="{height}" viewBox="-8 -8 {width + 70} {height + 16}" role="img" '
        f'aria-label="{title}" style="background:#fff"><g fill="#aaa">{dots}</g>{"".join(marks)}</svg>'
        f"<br><small>{title}</small>"
    )


def _scaled(values: np.ndarray, size: int) -> np.ndarray:
    low, high = values.min(), values.max()
    return (values - low) / (high - low if high > low else 1) * size


def explorer_widget(load: Callable[[str], Explorer], runs: Sequence[str], token: int = 0) -> Any:
    """Build the interactive explorer, an ipywidgets box: choices, search, epoch, and the view below them.

    Args:
        load: returns the explorer of a run by name; called when a run is chosen.
        runs: names to choose from, at least one; the first one is loaded now.
    """
    if not runs:
        raise ValueError("No run to explore; name at least one.")
    return _Panel(load, runs, token).box


class _Panel:
    """Widgets and what happens when they change."""

    def __init__(self, load: Callable[[str], Explorer], runs: Sequence[str], token: int) -> None:
        import ipywidgets as w

        self._load, self._quiet = load, True
        wide = w.Layout(width="300px")
        self.run = w.Dropdown(options=list(runs), description="run", layout=wide)
        self.variant = w.Dropdown(description="objective", layout=wide)
        self.matrix = w.ToggleButtons(options=["input", "head"], description="rows")
        self.search = w.Text(description="search", placeholder="part of a token", continuous_update=False, layout=wide)
        self.token = w.Dropdown(description="token", layout=wide)
        self.epoch = w.IntSlider(min=0, max=0, description="epoch", continuous_update=False, layout=wide)
        self.out = w.HTML()
        self.run.observe(self._open, names="value")
        self.search.observe(self._find, names="value")
        for widget in (self.variant, self.matrix, self.token, self.epoch):
            widget.observe(self._show, names="value")
        rows = [w.HBox([self.run, self.variant]), w.HBox([self.search, self.token]), w.HBox([self.epoch, self.matrix])]
        self.box = w.VBox([*rows, self.out])
        self._open()
        if token in [at for _, at in self.token.options]:
            self.token.value = token

    def _open(self, _: Any = None) -> None:
        self._quiet = True
        self.explorer = self._load(self.run.value)
        names = list(self.explorer.histories)
        self.variant.options = [(variant_label(name), name) for name in names]
        trained = [name for name in names if self.explorer.histories[name].last > 0]
        self.variant.value = (trained or names)[-1]
        self.search.value = ""
        self._find()

    def _find(self, _: Any = None) -> None:
        self._quiet = True
        found = self.explorer.search(self.search.value)
        self.token.options = [(repr(self.explorer.tokens[at].text)[1:-1], at) for at in found]
        self._quiet = False
        self._show()

    def _show(self, _: Any = None) -> None:
        if self._quiet:
            return
        if self.token.value is None:
            self.out.value = f"<em>no new token contains {html.escape(repr(self.search.value))}</em>"
            return
        history = self.explorer.histories[self.variant.value]
        if self.epoch.max != history.last:
            self._quiet = True
            self.epoch.max = history.last
            self.epoch.value = history.last
            self._quiet = False
        view = self.explorer.view(self.variant.value, self.token.value, self.epoch.value, self.matrix.value)
        self.out.value = view_html(view)
