"""Figures that need the vocabulary wing: token strips and the loss pipeline, drawn for `vocabx figures`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vocabx_utils.analysis.drawings import Drawing, FigureSpec
from vocabx_utils.files import read_json, read_jsonl
from vocabx_utils.runs import MissingStageError, Run
from vocabx_utils.thesis import ALIGNMENT_EXAMPLE, POSITION_MAPPING, TOKENIZATION_TABLE, AlignmentExample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vocabx_utils.vocabulary.alignment import AlignedText
    from vocabx_utils.vocabulary.tokens import Extension

__all__ = ["STRIP_FIGURES"]

_LONGEST_LINE = 70
_PROCESS_TEXT = "def calculate_sum(a, b):"


def _telling_line(run: Run) -> tuple[Extension, AlignedText]:
    """The validation line of code with the most new tokens among the short ones, aligned."""
    from vocabx_utils.vocabulary.alignment import align_texts
    from vocabx_utils.vocabulary.tokens import load_extension

    extension = load_extension(run.require("01", "extension/original").parent)
    pairs = read_jsonl(run.require("01", "splits/validation.jsonl"))
    lines = sorted({line.strip() for pair in pairs for line in pair["answer"].splitlines()})
    found = align_texts(extension, [line for line in lines if 20 <= len(line) <= _LONGEST_LINE])
    if not found:
        raise MissingStageError(f"The validation split of run {run.name!r} has no line that is short enough to draw.")
    return extension, max(found, key=lambda aligned: int((aligned.extended_ids >= extension.V).sum()))


def _tokenization(run: Run) -> Drawing:
    from vocabx_utils.vocabulary.strip_figures import draw_strip
    from vocabx_utils.vocabulary.strips import aligned_strip

    strip = aligned_strip(*_telling_line(run))
    return Drawing(_root(draw_strip(strip, indices=True)), f"Two tokenizations of one line of code. {strip.summary}")


def _tokenization_process(run: Run) -> Drawing:
    """The thesis's example under the tokenizers of the run, below the thesis's own tokens and ids."""
    from vocabx_utils.analysis.plots import note
    from vocabx_utils.vocabulary.strip_figures import draw_token_ids
    from vocabx_utils.vocabulary.tokens import load_extension

    extension = load_extension(run.require("01", "extension/original").parent)
    published = [piece for piece, _ in TOKENIZATION_TABLE], [number for _, number in TOKENIZATION_TABLE]
    rows: list[tuple[str, list[str], list[int], set[int]]] = [("thesis", *published, set())]
    for name, tokenizer in (("original, this run", extension.original), ("extended, this run", extension.extended)):
        coded = tokenizer(_PROCESS_TEXT, add_special_tokens=False, return_offsets_mapping=True)
        pieces = [_PROCESS_TEXT[start:stop] for start, stop in coded["offset_mapping"]]
        new = {at for at, number in enumerate(coded["input_ids"]) if number >= extension.V}
        rows.append((name, pieces, coded["input_ids"], new))
    ax = draw_token_ids(rows)
    sizes = [len(row[1]) for row in rows]
    note(
        ax,
        f"One text, n = {sizes[1]} original and {sizes[2]} extended tokens; below each its id; {chr(0x25C6)} new. The "
        "thesis's table (tab:tokenization_process) leaves out the end of the text; its ids are of another tokenizer.",
    )
    alt = (
        f"The text {_PROCESS_TEXT} cut into tokens with their ids: {sizes[0]} tokens in the thesis's table, "
        f"{sizes[1]} under the original and {sizes[2]} under the extended tokenizer of run {run.name}, "
        f"{len(rows[2][3])} of them new."
    )
    return Drawing(_root(ax), alt)


def _loss_pipeline(run: Run) -> Drawing:
    from vocabx_utils.vocabulary.strip_figures import draw_loss_pipeline
    from vocabx_utils.vocabulary.strips import aligned_strip

    extension, aligned, kl = _measured_window(run)
    strip = aligned_strip(extension, aligned)
    pairs, kind = aligned.pairs("last")
    losses = [kl.get((int(i), int(j)), 0.0) for i, j in pairs]  # before the first new token KL is exactly 0
    axes = draw_loss_pipeline(strip, pairs, kind, vocabulary=extension.V, new_tokens=extension.N, kl=losses)
    alt = (
        f"Four steps from two tokenizations to the loss: {strip.summary} {len(pairs)} pairs of positions are kept, the "
        f"{extension.N} new rows of the student's logits are cut off, and KL is taken column by column; its mean here "
        f"is {sum(losses) / len(losses):.3f} nats."
    )
    return Drawing(_root(axes[0]), alt)


def _measured_window(run: Run) -> tuple[Extension, AlignedText, dict[tuple[int, int], float]]:
    """The shortest window that notebook 06 measured, aligned again, with its KL by position."""
    import pandas as pd

    from vocabx_utils.vocabulary.alignment import align_ids
    from vocabx_utils.vocabulary.tokens import load_extension

    windows = read_json(run.require("06", "windows.json"))
    table = pd.read_csv(run.require("06", "positions.csv"))
    extension = load_extension(run.require("01", "extension/original").parent)
    lengths = [len(extension.original.decode(window["original_ids"])) for window in windows]
    chosen = lengths.index(min(lengths))
    part = table[table["text"] == chosen]
    kl = {(int(i), int(j)): float(v) for i, j, v in zip(part["original"], part["extended"], part["kl"], strict=True)}
    return extension, align_ids(extension, *windows[chosen].values()), kl


def _example(example: AlignmentExample, name: str) -> Drawing:
    from vocabx_utils.vocabulary.strip_figures import draw_strip
    from vocabx_utils.vocabulary.strips import strip_from_pieces

    strip = strip_from_pieces(example.original, example.extended)
    return Drawing(_root(draw_strip(strip, indices=True)), f"{name} of the thesis ({example.label}). {strip.summary}")


def _alignment_example(_: Run) -> Drawing:
    return _example(ALIGNMENT_EXAMPLE, "Worked example of the token mapping")


def _position_mapping(_: Run) -> Drawing:
    return _example(POSITION_MAPPING, "Example of position mapping")


def _root(ax: object) -> Figure:
    return ax.get_figure(root=True)  # type: ignore[attr-defined,no-any-return]


STRIP_FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec("tokenization", "fig:tokenization", _tokenization),
    FigureSpec("tokenization_process", "tab:tokenization_process", _tokenization_process),
    FigureSpec("loss_pipeline", "fig:complete_loss_pipeline", _loss_pipeline),
    FigureSpec("alignment_example", "alg:token-mapping", _alignment_example),
    FigureSpec("position_mapping", "tab:awedist_mappings", _position_mapping),
)
