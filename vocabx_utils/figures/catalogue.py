"""Which figures the series has, and the one loop that draws them from the files of a run, each with its text.

Figures of the thesis that explain transformers in general (attention, MLP, projection with toy numbers, inference)
have no counterpart. A figure whose files a run does not have is left out with a reason; nothing is invented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import pandas as pd

from vocabx_utils import thesis
from vocabx_utils.figures import changes, losses, results, rows
from vocabx_utils.figures.diagrams import distillation_diagram, draw_diagram, loss_gradient_chart, pipeline_diagram
from vocabx_utils.figures.looks import LOOKS
from vocabx_utils.figures.strip_pictures import draw_loss_pipeline, draw_strip, draw_token_ids
from vocabx_utils.figures.strips import Strip, aligned_strip, strip_from_pieces
from vocabx_utils.figures.theme import Drawing, Format, figure_of, note, save_figure, theme
from vocabx_utils.files import read_json, read_jsonl
from vocabx_utils.rows import Matrix
from vocabx_utils.runs import MissingStageError, Run
from vocabx_utils.vocabulary.alignment import AlignedText, align_ids, align_texts
from vocabx_utils.vocabulary.tokens import Extension, load_extension

_SHORTEST_LINE, _LONGEST_LINE = 20, 70  # characters
_PROCESS_TEXT = "def calculate_sum(a, b):"


class FigureSpec(NamedTuple):
    """One figure of the list."""

    name: str  # file name without extension
    thesis: str  # LaTeX label of its counterpart, empty if it goes beyond the thesis
    draw: Callable[[Run], Drawing]  # makes it from a run; raises where the run lacks the files or they say nothing


class NothingToShow(RuntimeError):
    """The files are there, but this figure would say nothing of them."""


class Outcome(NamedTuple):
    """What became of one figure: the files written, or why there are none."""

    name: str
    paths: tuple[Path, ...]
    reason: str = ""


def draw_figures(
    run: Run, folder: Path, specs: Iterable[FigureSpec] | None = None, formats: Sequence[Format] = ("svg", "png")
) -> list[Outcome]:
    """Draw figures (all of `FIGURES` if none are named) of a run into a folder, with `alt.json`; one outcome each."""
    theme()
    outcomes = []
    for spec in FIGURES if specs is None else specs:
        try:
            drawing = spec.draw(run)
        except (MissingStageError, NothingToShow) as left_out:
            outcomes.append(Outcome(spec.name, (), str(left_out)))
            continue
        paths = save_figure(drawing.figure, spec.name, drawing.alt, folder, formats)
        plt.close(drawing.figure)
        outcomes.append(Outcome(spec.name, tuple(paths)))
    return outcomes


def _variants(run: Run, stage: str) -> list[str]:
    if not (names := run.variants(stage)):
        run.require(stage)
    return names


def _phase1(run: Run, key: str) -> Drawing:
    metrics = {name: read_jsonl(run.require("03", f"{name}/metrics.jsonl")) for name in _variants(run, "03")}
    return losses.draw_metric({name: lines for name, lines in metrics.items() if lines}, key)


def read_curve(run: Run, variant: str) -> pd.DataFrame | None:
    """Read the losses of a variant of notebook 04, those of the stages that it branches off first; None without any."""
    lines = _stage_lines(run, variant)
    return losses.epoch_curve(pd.DataFrame(lines)) if lines else None


def _stage_lines(run: Run, variant: str, upto: str = "") -> list[dict[str, Any]]:
    folder = run.folder / "04_fine_tuning" / variant
    origin = read_json(folder / "key.json").get("origin", {}) if (folder / "key.json").exists() else {}
    found = _stage_lines(run, origin["variant"], origin["stage"]) if origin.get("kind") == "branch" else []
    for path in sorted(folder.glob("*/losses.jsonl")):
        if not upto or path.parent.name <= upto:
            lines = [{"kind": "epoch", **line, "stage": path.parent.name} for line in read_jsonl(path)]
            found += [line for line in lines if line["kind"] == "epoch"]
    return found


def _curves(run: Run, *, blocks_moved: bool) -> dict[str, pd.DataFrame]:
    what = "sequential full fine-tuning (stage c)" if blocks_moved else "stage a or b"
    found = {}
    for name in _variants(run, "04"):
        curve = read_curve(run, name)
        if curve is not None and curve["stage"].str.startswith("c").any() == blocks_moved:
            found[name] = curve
    if not found:
        raise MissingStageError(
            f"Run {run.name!r} has no variant with {what}; name one in the parameters of notebook 04_fine_tuning."
        )
    return found


def _results(run: Run) -> Drawing:
    bits = pd.read_csv(run.require("05", "bits_per_byte.csv"))
    path = run.folder / "05_benchmark_evaluation" / "table.csv"  # only where answers could be executed
    table = pd.read_csv(path) if path.exists() else pd.DataFrame({"model": []})
    return results.draw_results(bits, table, run.name)


def _analysed(run: Run, name: str) -> pd.DataFrame:
    return pd.read_csv(run.require("06", name))


def _cosines(run: Run, matrix: Matrix) -> Drawing:
    return rows.draw_cosines(_analysed(run, "cosines.csv"), matrix)


def _causal(run: Run) -> Drawing:
    return changes.draw_causal(_analysed(run, "causal.csv"), read_json(run.require("06", "causal.json")))


def _groups(run: Run, matrix: Matrix, grouping: str) -> Drawing:
    table = _analysed(run, "groups.csv")
    part = table[table["grouping"] == grouping].rename(columns={"group": grouping})
    if len(names := part[grouping].unique()) < 2:
        only = f"all new tokens of run {run.name!r} are in one group ({', '.join(map(str, names))})"
        raise NothingToShow(f"By {rows.GROUPINGS[grouping]}, {only}; its curves are those of {matrix}_cosines.")
    return rows.draw_group_cosines(part, matrix, grouping)


def _extension(run: Run) -> Extension:
    return load_extension(run.require("01", "extension/original").parent)


def _code_lines(run: Run) -> list[str]:
    """Lines of code of the validation split that are long enough to say something, sorted."""
    pairs = read_jsonl(run.require("01", "splits/validation.jsonl"))
    lines = sorted({line.strip() for pair in pairs for line in pair["answer"].splitlines()})
    return [line for line in lines if len(line) >= _SHORTEST_LINE]


def _tokenization(run: Run) -> Drawing:
    """The validation line of code with the most new tokens among the short ones."""
    extension = _extension(run)
    found = align_texts(extension, [line for line in _code_lines(run) if len(line) <= _LONGEST_LINE])
    if not found:
        raise MissingStageError(f"The validation split of run {run.name!r} has no line that is short enough to draw.")
    strip = aligned_strip(extension, max(found, key=lambda text: int((text.extended_ids >= extension.V).sum())))
    return _pictured(strip, "Two tokenizations of one line of code.")


def _pictured(strip: Strip, words: str) -> Drawing:
    return Drawing(figure_of(draw_strip(strip, indices=True)), f"{words} {strip.summary}")


def _tokenization_process(run: Run) -> Drawing:
    """The thesis's example below its own tokens and ids if a new token is in it, else a short line of the run."""
    extension = _extension(run)
    ways: list[tuple[str, list[str], list[int], set[int]]] = []
    if _new_tokens(extension, _PROCESS_TEXT):
        text, published = _PROCESS_TEXT, zip(*thesis.TOKENIZATION_TABLE, strict=True)
        ways.append(("thesis", *map(list, published), set()))  # type: ignore[arg-type]
    else:
        text = _short_line(run, extension)
    for name, tokenizer in (("original tokenizer", extension.original), ("extended tokenizer", extension.extended)):
        coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pieces = [text[start:stop] for start, stop in coded["offset_mapping"]]
        new = {at for at, number in enumerate(coded["input_ids"]) if number >= extension.V}
        ways.append((name, pieces, coded["input_ids"], new))
    ax = draw_token_ids(ways)
    (_, original, _, _), (_, extended, _, fresh) = ways[-2:]
    words = (
        f"One text, n = {len(original)} original and {len(extended)} extended tokens, and below each its id. "
        f"{LOOKS['new'].mark} new: its id is {extension.V:,} or more, for the original ids end there."
    )
    if len(ways) > 2:
        words += " The thesis's table (tab:tokenization_process) leaves out the end of the text; its ids are of "
        words += "another tokenizer."
    note(ax, words)
    alt = (
        f"The text {text.strip()} cut into tokens with their ids, one row for each tokenizer: {len(original)} tokens "
        f"under the original and {len(extended)} under the extended tokenizer of run {run.name}, {len(fresh)} of them "
        "new, with ids behind all original ones."
    )
    return Drawing(figure_of(ax), alt)


def _new_tokens(extension: Extension, text: str) -> int:
    return sum(number >= extension.V for number in extension.extended(text, add_special_tokens=False)["input_ids"])


def _short_line(run: Run, extension: Extension) -> str:
    """The shortest line of code with a new token, in plain letters."""
    for line in sorted(_code_lines(run), key=len):
        if line.isascii() and _new_tokens(extension, line):
            return line
    raise MissingStageError(f"The validation split of run {run.name!r} has no line with a new token.")


def _loss_pipeline(run: Run) -> Drawing:
    extension, aligned, kl = _measured_window(run)
    strip = aligned_strip(extension, aligned)
    pairs, kind = aligned.pairs("last")
    found = [kl.get((int(i), int(j)), 0.0) for i, j in pairs]  # before the first new token KL is exactly 0
    axes = draw_loss_pipeline(strip, pairs, kind, vocabulary=extension.V, new_tokens=extension.N, kl=found)
    alt = (
        f"Four steps from two tokenizations to the loss: {strip.summary} {len(pairs)} pairs of positions are kept, the "
        f"{extension.N} new rows of the student's logits are cut off, and KL is taken column by column; its mean here "
        f"is {sum(found) / len(found):.3f} nats."
    )
    return Drawing(figure_of(axes[0]), alt)


def _measured_window(run: Run) -> tuple[Extension, AlignedText, dict[tuple[int, int], float]]:
    """The window of notebook 06 with the highest KL at the end of a new token, aligned again, and KL by position."""
    windows = read_json(run.require("06", "windows.json"))
    table = _analysed(run, "positions.csv")
    extension = _extension(run)
    ends = table[table["merged"]] if "merged" in table else table
    chosen = int(ends["text"].iloc[int(ends["kl"].argmax())])
    part = table[table["text"] == chosen]
    kl = {(int(i), int(j)): float(v) for i, j, v in zip(part["original"], part["extended"], part["kl"], strict=True)}
    return extension, align_ids(extension, *windows[chosen].values()), kl


def _example(example: thesis.AlignmentExample, name: str) -> Drawing:
    return _pictured(strip_from_pieces(example.original, example.extended), f"{name} of the thesis ({example.label}).")


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec("pipeline", "fig:complete_pipeline", lambda _: draw_diagram(pipeline_diagram)),
    FigureSpec("self_distillation", "fig:algo1", lambda _: draw_diagram(distillation_diagram)),
    FigureSpec("loss_gradient", "fig:loss_gradient", lambda _: draw_diagram(loss_gradient_chart)),
    FigureSpec("phase1_ce", "fig:phase1_ce_loss", lambda run: _phase1(run, "ce")),
    FigureSpec("phase1_kl", "fig:phase1_kl_loss", lambda run: _phase1(run, "kl_identical")),
    FigureSpec("phase1_kl_last", "", lambda run: _phase1(run, "kl_last")),
    FigureSpec("phase1_kl_pooled", "fig:phase1_kl_loss", lambda run: _phase1(run, "kl_pooled")),
    FigureSpec("finetuning", "fig:finetune_loss", lambda run: losses.draw_finetuning(_curves(run, blocks_moved=False))),
    FigureSpec(
        "sequential", "fig:sequential_finetune", lambda run: losses.draw_sequential(_curves(run, blocks_moved=True))
    ),
    FigureSpec("sequential_published", "fig:sequential_finetune", lambda _: losses.draw_sequential_published()),
    FigureSpec("results", "tab:combined_results", _results),
    FigureSpec("results_published", "tab:combined_results", lambda _: results.draw_published_results()),
    FigureSpec("input_cosines", "fig:embedding_similarity", lambda run: _cosines(run, "input")),
    FigureSpec("head_cosines", "fig:head_similarity", lambda run: _cosines(run, "head")),
    FigureSpec("input_cosines_by_length", "", lambda run: _groups(run, "input", "subtokens")),
    FigureSpec("input_cosines_by_count", "", lambda run: _groups(run, "input", "frequency")),
    FigureSpec("head_cosines_by_length", "", lambda run: _groups(run, "head", "subtokens")),
    FigureSpec("head_cosines_by_count", "", lambda run: _groups(run, "head", "frequency")),
    FigureSpec("causal", "", _causal),
    FigureSpec("layers", "", lambda run: changes.draw_layers(_analysed(run, "layers.csv"))),
    FigureSpec("tokenization", "fig:tokenization", _tokenization),
    FigureSpec("tokenization_process", "tab:tokenization_process", _tokenization_process),
    FigureSpec("loss_pipeline", "fig:complete_loss_pipeline", _loss_pipeline),
    FigureSpec(
        "alignment_example",
        "alg:token-mapping",
        lambda _: _example(thesis.ALIGNMENT_EXAMPLE, "Worked example of the token mapping"),
    ),
    FigureSpec(
        "position_mapping",
        "tab:awedist_mappings",
        lambda _: _example(thesis.POSITION_MAPPING, "Example of position mapping"),
    ),
)
