"""What the first page of a run's report says of the run: model, date, results and verdicts, each from a file of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, get_args

from vocabx_utils.analysis.collected import read_rows
from vocabx_utils.files import read_json
from vocabx_utils.intervals import Answer, word_of
from vocabx_utils.names import TUNED, variant_label
from vocabx_utils.paths import STAGES
from vocabx_utils.runs import Run
from vocabx_utils.thesis import CLAIMS


@dataclass(frozen=True)
class Front:
    """Facts about a run; what it has no file for is left out."""

    facts: dict[str, str]
    results: tuple[str, ...]  # sentences
    claims: tuple[Said, ...]


class Said(NamedTuple):
    """What the notebooks of a run say of one claim of the thesis."""

    claim: str  # its number
    text: str  # in words
    answers: tuple[tuple[str, str], ...]  # (answer, stage), each pair once


def read_front(run: Run) -> Front:
    """Read a run's facts, results and verdicts from its files."""
    return Front(dict(_facts(run)), tuple(_results(run)), tuple(_claims(run)))


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    keys = [path for stage in STAGES[:2] if (path := run.folder / stage / "key.json").exists()]
    key = {name: value for path in keys for name, value in read_json(path).items()}
    sealed = [read_json(path) for path in sorted(run.folder.glob("0*/**/provenance.json"))]
    if "model" in key:
        yield "Model", key["model"]
    if "n_tokens" in key:
        yield "New tokens", f"{key['n_tokens']:,}, chosen by the strategy {key['strategy']!r}"
    if sealed:
        last = max(sealed, key=lambda found: datetime.fromisoformat(found["finished"]))
        day = datetime.fromisoformat(last["finished"])
        yield "Finished", f"{day.day} {day:%B %Y}"
        parts = [f"{name} {last['versions'][name]}" for name in ("torch", "transformers") if name in last["versions"]]
        yield "Made with", ", ".join([f"vocabx at revision {last['git']}", *parts] if last.get("git") else parts)


def _results(run: Run) -> Iterator[str]:
    for row in read_rows(run.folder / "01_tokenizer_extension/gains.csv"):
        change = 100 * (row["tokens_after"] / row["tokens_before"] - 1)
        yield (
            f"{row['texts']:,} held-out texts ({row['type']}) take {row['tokens_before']:,} tokens with the old "
            f"tokenizer and {row['tokens_after']:,} with the new one, {abs(change):.1f} % "
            f"{'fewer' if change < 0 else 'more'}."
        )
    phase1 = {row["variant"]: row["bpb"] for row in read_rows(run.folder / "03_phase1_training/table.csv")}
    trained = {name: value for name, value in phase1.items() if not name.endswith("untrained")}
    if trained and len(trained) < len(phase1):
        start = min(value for name, value in phase1.items() if name not in trained)
        best = min(trained, key=trained.__getitem__)
        yield (
            f"After phase 1 the best variant ({variant_label(best)}) needs {trained[best]:.3f} bits per byte of "
            f"held-out text; untrained new rows need {start:.3f}."
        )
    for row in read_rows(run.folder / "05_benchmark_evaluation/bits_per_byte.csv"):
        if row["texts"] == "held out" and row["model"].startswith(TUNED):
            interval = f"95 % interval {row['low']:+.3f} to {row['high']:+.3f}, {row['n']} texts"
            yield (
                f"The fine-tuned model ({variant_label(row['model'].removeprefix(TUNED))}) needs "
                f"{row['bits_per_byte']:.3f} bits per byte of held-out text, {row['difference']:+.3f} against the base "
                f"model ({interval})."
            )


def _claims(run: Run) -> Iterator[Said]:
    answers: dict[str, dict[tuple[str, str], None]] = {claim: {} for claim in CLAIMS}  # no answer twice, in order
    for stage in STAGES:
        path = run.folder / stage / "verdicts.json"
        found = read_json(path) if path.exists() else []
        for entry in found.values() if isinstance(found, dict) else found:  # by setting, or one after another
            claim = entry["claim"].split()[0]
            if claim in answers and entry.get("answer") in get_args(Answer):
                answers[claim][word_of(entry["answer"], entry.get("reason", "")), stage] = None
    yield from (Said(claim, CLAIMS[claim], tuple(said)) for claim, said in answers.items() if said)
