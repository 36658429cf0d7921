"""How every figure of the series looks, and how it is saved: one theme, fixed bytes, alternative text.

Figures must be readable in grey and by colour-blind readers, so each kind of curve has its own marker and
line style besides its colour. Backgrounds are white in every format: transparent ones lose their labels in
dark mode.
"""

from __future__ import annotations

import io
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from PIL import Image

from vocabx_utils.files import atomic_path, read_json, write_json
from vocabx_utils.names import split_variant
from vocabx_utils.paths import runs_root

PALETTE = ("#0772da", "#c17c08", "#055e38", "#50175c", "#c6399b", "#212197", "#7b5206", "#96887c")
"""Line colours: each at least 3:1 on white, any two at least 20 apart in CIELAB, for colour-blind readers too."""
BASE_COLOR, ADVISED_COLOR, FAINT = "#222222", "#8000f8", "0.35"
"""Colours of the base model, of the recipe that we advise, and of notes and other words beside the data.

The first two are as far from all line colours, and from each other, as those are.
"""

LEAST_KL = 1e-3
"""Nats at which a KL of less is drawn on a logarithmic axis, where 0 has no place."""
WIDEST = 9.8
"""Inches of the widest figure: a page shows what is wider with smaller letters."""
Format = Literal["svg", "pdf", "png"]
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
_LINES: tuple[Any, ...] = (
    "-", "--", "-.", (0, (6, 3)), (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (7, 1.5, 1, 1.5, 1, 1.5)), (0, (7, 2, 2, 2)),
    (0, (4, 1, 4, 1, 1, 1)),
)  # fmt: skip
"""Markers and lines of the colours, and last those of the advised recipe."""
_UNTRAINED_LINE = ":"  # theirs alone: none of the others is dotted
_ADVISED = "mean_kl_last_ce0.1"
_ORDERED = (
    "mean_ce", "random_ce", "mean_kl_first", "random_kl_first", "mean_kl_last", "random_kl_last",
    "mean_untrained", "random_untrained", "mean_kl_last_ce0.3", "mean_kl_none", "mean_kl_last_ce0.03",
    _ADVISED, "mean_hidden_last", "mean_kl_last_ce1", "mean_kl_last_t2",
)  # fmt: skip
"""Variants with a style of their own, in the order of the styles; colours come round after eight.

Those from mean rows that stand beside the line of weights on CE have colours that differ. The advised recipe stands
beside the first eight in most notebooks and has a look that is not in the cycle.
"""
_SHIFTS = {"without stage a": 1, "full fine-tuning": 2, "fine-tuned": 3}
_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "ModDate": None}, "png": {}}
_PNG_DPI, _PAGE_DPI, _MIN_ALT = 150, 84, 20
"""Dots per inch of a PNG, in a file and in a notebook, and of the size at which a page shows it."""
_COLORS = 256  # of a PNG: lines and words need no more, and the file shrinks to less than half
_CHARACTERS_PER_INCH = 14.5  # of a note


@dataclass(frozen=True)
class Drawing:
    """A figure with its alternative text: what is plotted, which axes, the main pattern."""

    figure: Figure
    alt: str


def theme() -> None:
    """Set the look of all figures made after this call."""
    mpl.rcParams.update(
        {
            "axes.axisbelow": True,
            "axes.edgecolor": "0.3",
            "axes.grid": True,
            "axes.labelsize": 10,
            "axes.prop_cycle": cycler(color=PALETTE, linestyle=_LINES[: len(PALETTE)], marker=_MARKERS[: len(PALETTE)]),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": 11,
            "errorbar.capsize": 3,
            "figure.constrained_layout.use": True,
            "figure.dpi": _PAGE_DPI,
            "figure.figsize": (6.4, 3.8),
            "font.family": "DejaVu Sans",
            "font.size": 10,
            "grid.color": "0.88",
            "image.cmap": "viridis",
            "legend.fontsize": 9,
            "legend.frameon": False,
            "lines.linewidth": 1.6,
            "lines.markersize": 4.5,
            "savefig.facecolor": "white",
            "svg.fonttype": "path",
            "svg.hashsalt": "vocabx",
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
        }
    )


def variant_style(name: str) -> dict[str, Any]:
    """Return colour, marker and line style of a variant, the same in every figure of the series.

    A name without a style of its own gets one that depends on the name alone. What notebook 04 makes of a variant
    keeps its colour and gets another marker and line. Dotted is what was not trained, and nothing else.
    """
    stem, added = split_variant(name)
    shift = sum(_SHIFTS[words] for words in added)
    if stem == "base":
        return {"color": BASE_COLOR, "marker": "*" if added else "h", "linestyle": _LINES[shift]}
    if stem == _ADVISED:
        style: dict[str, Any] = {"color": ADVISED_COLOR, "marker": _MARKERS[-1], "linestyle": _LINES[-1]}
    else:
        style = cycle_style(_ORDERED.index(stem) if stem in _ORDERED else zlib.crc32(stem.encode()))
    if stem.endswith("_untrained") and not added:
        return style | {"linestyle": _UNTRAINED_LINE}
    marker, line = _MARKERS.index(style["marker"]), _LINES.index(style["linestyle"])
    return style | {"marker": _MARKERS[marker - shift], "linestyle": _LINES[line - shift]}


def cycle_style(index: int) -> dict[str, Any]:
    """Return the colour, marker and line style number `index` (0 or more) of an endless cycle."""
    at, lap = index % len(PALETTE), index // len(PALETTE)
    shifted = (at + 3 * lap) % len(PALETTE)  # a colour that comes round again has another marker and line
    return {"color": PALETTE[at], "marker": _MARKERS[shifted], "linestyle": _LINES[shifted]}


def new_axes(ax: Axes | None = None, **figure: Any) -> Axes:
    """Return the axes given, or those of a new figure, made by `plt.subplots(**figure)`."""
    return ax if ax is not None else plt.subplots(**figure)[1]


def figure_of(ax: Axes) -> Figure:
    """Return the whole figure that these axes belong to."""
    figure = ax.get_figure(root=True)
    assert figure is not None  # axes that we made
    return figure


def whole_epochs(ax: Axes) -> None:
    """Put ticks of the horizontal axis at whole numbers only."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def plain_ticks(ax: Axes, values: Iterable[float], spelling: str = "{:g}") -> None:
    """Put ticks of a logarithmic horizontal axis at these values only, spelled as plain numbers."""
    shown = list(values)
    ax.set_xticks(shown, [spelling.format(value) for value in shown])
    ax.minorticks_off()


def log_axes(ax: Axes, across: Sequence[float], up: Sequence[float]) -> None:
    """Make both axes logarithmic between these limits, with plain numbers."""
    ax.set(xscale="log", yscale="log", xlim=across, ylim=up)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")


def note(ax: Axes, text: str) -> None:
    """Write a note below the figure of these axes: what n is and what bars or bands mean. One for each figure."""
    figure = figure_of(ax)
    width = int(_CHARACTERS_PER_INCH * figure.get_size_inches()[0])
    figure.supxlabel(textwrap.fill(text, width), x=0.01, ha="left", fontsize="small", color=FAINT)


def legend_by_end(ax: Axes, **style: Any) -> Legend:
    """Write the legend of line curves in the order in which they end, from the highest to the lowest."""
    handles, labels = ax.get_legend_handles_labels()
    ends = [float(np.asarray(h.get_ydata())[-1]) if isinstance(h, Line2D) else -np.inf for h in handles]
    order = sorted(range(len(ends)), key=lambda at: -ends[at])
    return ax.legend([handles[at] for at in order], [labels[at] for at in order], **style)


def legend_entries(axes: Iterable[Axes]) -> dict[str, Artist]:
    """Return what a legend of several axes has to name, each label once."""
    both = [ax.get_legend_handles_labels() for ax in axes]
    return {label: handle for handles, labels in both for handle, label in zip(handles, labels, strict=True)}


def legend_above(fig: Figure, marks: Mapping[str, Any], columns: int = 4) -> None:
    """Write the legend of all axes above them, which keep the whole width and lie under none of it."""
    columns = min(columns, len(marks))
    fig.legend(list(marks.values()), list(marks), loc="outside upper center", ncols=columns, fontsize="small")


def save_figure(
    fig: Figure, name: str, alt: str, folder: str | Path | None = None, formats: Sequence[Format] = ("svg", "png")
) -> list[Path]:
    """Save a figure with fixed bytes (PNG with 150 dpi, few colours), and its alternative text in `alt.json` beside it.

    Its parts are laid out once, for all formats, and stay where they are from then on.

    Args:
        alt: what is plotted, which axes, the main pattern; for readers who do not see the picture.
        folder: where to; `figures/` below all runs if left out. Notebooks give the folder of their stage.

    Raises:
        ValueError: the alternative text is too short to say anything, or a format is unknown.
    """
    if len(alt.strip()) < _MIN_ALT:
        raise ValueError(f"Figure {name!r}: the alternative text is {alt!r}; say what is plotted and what it shows.")
    if unknown := sorted(set(formats) - set(_DATES)):
        raise ValueError(f"Unknown formats {unknown}; choose from {sorted(_DATES)}.")
    folder = Path(folder) if folder is not None else runs_root() / "figures"
    paths = [folder / f"{name}.{extension}" for extension in formats]
    with _laid_out(fig):
        for path, extension in zip(paths, formats, strict=True):
            with atomic_path(path) as temporary:
                if extension == "png":
                    temporary.write_bytes(_png(fig))
                else:
                    fig.savefig(temporary, format=extension, metadata=_DATES[extension], facecolor="white")
    texts = read_json(folder / "alt.json") if (folder / "alt.json").exists() else {}
    write_json(folder / "alt.json", dict(sorted({**texts, name: " ".join(alt.split())}.items())))
    return paths


@contextmanager
def _laid_out(fig: Figure) -> Iterator[None]:
    """Lay a figure out once, for all that is drawn of it; its parts stay where they are.

    Laying out takes as long as drawing, and every format would do it again. An engine that is there, even one that is
    told to do nothing, makes Matplotlib draw each format twice, so in here the figure has none.
    """
    if engine := fig.get_layout_engine():
        engine.execute(fig)
    no_engine: Any = {"figure.constrained_layout.use": False, "figure.autolayout": False}
    with mpl.rc_context({"svg.hashsalt": "vocabx"} | no_engine):
        fig.set_layout_engine(None)  # what the settings say: none
        try:
            yield
        finally:
            # a figure that came back without one would get the settings' engine when it is drawn again
            fig.set_layout_engine(engine)
            fig.set_layout_engine("none")


def _png(fig: Figure) -> bytes:
    """Draw a figure as a PNG of few colours, always the same bytes for the same figure."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    fig.savefig(drawn, format="png", dpi=_PNG_DPI, metadata={"Software": None}, facecolor="white")
    with Image.open(drawn) as picture:
        few = picture.convert("RGB").quantize(_COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(packed, "png", optimize=True, dpi=(_PNG_DPI, _PNG_DPI))
    return packed.getvalue()


def show_figure(fig: Figure, name: str, alt: str, folder: str | Path | None = None) -> None:
    """Save a figure (see `save_figure`), show its PNG in the notebook with its alternative text below, and close it.

    The picture has more dots than the page shows at its size, so that it is sharp on a dense screen. It carries the
    text as its `alt` attribute too, so that web pages made from the notebook keep it.
    """
    from IPython.display import Image as Shown
    from IPython.display import Markdown, display

    _, picture = save_figure(fig, name, alt, folder, ("svg", "png"))
    width = round(_PAGE_DPI * fig.get_size_inches()[0])
    plt.close(fig)
    words = " ".join(alt.split())
    display(Shown(picture.read_bytes(), format="png", width=width, alt=words))
    display(Markdown(f"*{words}*"))
