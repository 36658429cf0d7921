"""An adaptation from top to bottom: read, propose, choose a rate, learn, tune, export, measure, report.

`OUT/model` is the plain Hugging Face folder, `OUT/report.html` and `OUT/summary.json` say what it gains, and `OUT/work`
is what a stopped command goes on from. The model has a folder of its own so that it can be loaded, copied or uploaded
as it is.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from vocabx_utils import locks
from vocabx_utils.adaptation import learning, measures, plan, proposal
from vocabx_utils.adaptation.learning import Bench
from vocabx_utils.adaptation.report import lead, write_report
from vocabx_utils.adaptation.settings import AdaptSettings, sizes_of
from vocabx_utils.adaptation.steps import MODEL, REPORT, STATE, SUMMARY, WORK, OutError, Part, Steps, open_out
from vocabx_utils.adaptation.sweep import EPOCHS, sweep
from vocabx_utils.adaptation.texts import Split, read_texts, split_texts
from vocabx_utils.fetch import source_digest
from vocabx_utils.files import digest, read_json, write_json
from vocabx_utils.models import load_base_model, load_tokenizer
from vocabx_utils.paths import user_path
from vocabx_utils.runs import git_revision, installed_versions, now
from vocabx_utils.student import Student
from vocabx_utils.training.loss_model import peak_bytes

_VERSIONS = ("vocabx-utils", "torch", "transformers", "tokenizers", "peft", "numpy")
_PARTS = 7  # without a sweep and LoRA
_MODEST = 50.0  # tokens saved of 1,000, below which the other strategy is named
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Adapted:
    """What an adaptation left."""

    folder: Path  # OUT
    summary: dict[str, Any]  # all that was measured, as in `summary.json`; after a dry run what was known then

    @property
    def model(self) -> Path:
        """The plain Hugging Face folder; not there after a dry run."""
        return self.folder / MODEL

    @property
    def report(self) -> Path:
        """The HTML report; not there after a dry run."""
        return self.folder / REPORT

    def __str__(self) -> str:
        if "likelihood" not in self.summary:
            return f"{self.summary['tokens']['N']} new tokens proposed; nothing was trained"
        return lead(self.summary)


def adapt(
    model: str | Path,
    source: str | Path,
    out: str | Path,
    *,
    dry_run: bool = False,
    tell: Tell = print,
    **settings: Any,
) -> Adapted:
    """Extend a model by tokens of one's own texts, learn their rows, export and measure it; `vocabx adapt` in Python.

    What was done before in `out` is found again: a stopped call goes on where it stood, and ends with the same model.

    Args:
        model: packaged name, hub id, local folder or .gguf file.
        source: a folder of texts, or a `.jsonl` file with a text or a pair a line; see `adaptation.texts`.
        out: folder to write, new or begun by the same call. `out/model` is the plain Hugging Face folder.
        dry_run: stop before a weight is loaded, with the gain in tokens told.
        tell: receives a line at each part.
        settings: fields of `adaptation.settings.AdaptSettings`, such as `n`, `strategy`, `fine_tune`, `epochs`.

    Raises:
        ValueError: a setting is wrong; or `OutError`, `CorpusError`, `TokenizerError`, `ModelError`: `out` holds other
            things, texts cannot be read or are too few, offer fewer tokens than were asked for, or the model is one
            that phase 1 refuses.
        RuntimeError: `KeyMismatchError` (`out` holds a model made with other settings), `SpaceError` (the result would
            not fit on the disk), `BusyError` (another process works there).

    Example:
        >>> from vocabx_utils import adapt
        >>> (scratch / "src").mkdir()
        >>> for number in range(8):
        ...     lines = (f"def pipeline_{k}(window):\\n    return window.gradient({k})\\n" for k in range(40))
        ...     _ = (scratch / "src" / f"{number}.py").write_text(f"# season {number}\\n" + "".join(lines))
        >>> made = adapt(folder, scratch / "src", scratch / "mine", n=4, learning_rate=0.01, tell=lambda line: None)
        >>> sorted(path.name for path in made.folder.iterdir() if path.name[0] != ".")
        ['adapt.json', 'model', 'report.html', 'summary.json', 'work']
        >>> made.summary["tokens"]["N"]
        4
    """
    chosen = AdaptSettings.from_params(**settings)
    out = user_path(out)
    _refuse_inside(out, user_path(source))
    tokenizer = load_tokenizer(model)
    found = read_texts(source, tokenizer, glob=chosen.glob, all_files=chosen.all_files, tell=tell)
    split = split_texts(found, chosen.held_out, chosen.validation)
    key = {"model_files": source_digest(model), "texts": split.digest(), **chosen.key()}
    if open_out(out, key):
        tell(f"{out} is finished: nothing to do. Remove it, or give another folder, to do it again.")
        return Adapted(out, read_json(out / SUMMARY))
    for part, size in split.sizes().items():
        tell(f"{part.replace('_', '-')}: {size['files']} files, {size['bytes'] / 1e6:.2f} MB")
    shape = plan.read_shape(str(model), chosen.device, chosen.dtype)
    sizes = sizes_of(chosen, shape.device.type == "cuda")
    planned = plan.plan_for(shape, chosen, sizes)
    tell(planned.tell(out, shape.device, plan.check_space(planned, out)))
    (out / WORK).mkdir(parents=True, exist_ok=True)
    with locks.writing(out / WORK):
        work = Steps(out / WORK, tell, _PARTS + (not chosen.learning_rate) + (chosen.fine_tune != "none"))
        tokens = _propose(work, tokenizer, split, chosen)
        if dry_run:
            tell("dry run: nothing was trained. The same command without it goes on from here.")
            return Adapted(out, {"tokens": tokens.result, "warnings": tokens.result["warnings"]})
        base = load_base_model(model, device=chosen.device, dtype=chosen.dtype)
        Student(base.model, base.vocab_size)  # refuses a family whose logits phase 1 would get wrong
        bench = Bench(base, proposal.load(tokens.folder), split, chosen, sizes, out / WORK, tell)
        made = _Parts(work, bench, tokens, out, key)
        summary = made.all_parts()
        summary |= {
            "model": str(model), "source": str(source), "settings": chosen.to_dict(), "texts": split.sizes(),
            "fingerprint": base.fingerprint, "device": str(base.device),
            "dtype": str(base.dtype).removeprefix("torch."), "announced_bytes": planned.memory,
            "git": git_revision(), "finished": now(),
            "versions": {"python": platform.python_version(), **installed_versions(_VERSIONS)},
        }  # fmt: skip
        write_json(out / SUMMARY, summary)
        write_report(out / REPORT, read_json(out / SUMMARY))
    for warning in summary["warnings"]:
        tell(f"warning: {warning}")
    result = Adapted(out, read_json(out / SUMMARY))
    tell(f"{result}\nwritten: {result.model} (plain Hugging Face folder), {result.report}")
    return result


def _propose(work: Steps, tokenizer: Any, split: Split, chosen: AdaptSettings) -> Part:
    key = {"texts": split.digest(), "n": chosen.n, "strategy": chosen.strategy}
    key |= {"tokenizer": digest(tokenizer.get_vocab())}
    tokens = work.once(
        "tokens", "new tokens", key, lambda folder: proposal.propose(folder, tokenizer, split, chosen, work.tell)
    )
    gains = pd.DataFrame(tokens.result["gains"]).to_string(index=False, float_format=lambda value: f"{value:.4g}")
    work.tell(f"{tokens.result['choice']}. Gain on held-out files:\n{gains}")
    for warning in tokens.result["warnings"]:
        work.tell(f"warning: {warning}")
    saved = proposal.total(tokens.result["gains"])["saved_per_1000"]
    if chosen.strategy == "merges" and proposal.SMALL_GAIN <= saved < _MODEST:
        work.tell("tokens that cross words may save more: --strategy auto tries both and takes what does")
    return tokens


@dataclass(frozen=True)
class _Parts:
    """What follows the proposal, each part done once."""

    work: Steps
    bench: Bench
    tokens: Part
    out: Path
    key: dict[str, Any]

    def all_parts(self) -> dict[str, Any]:
        """Do what is left, and return what every part found."""
        chosen, bench = self.bench.settings, self.bench
        known: dict[str, Any] = {
            "tokens": self.tokens.digest, "model": bench.base.fingerprint, "dtype": str(bench.base.dtype),
            "variant": chosen.variant, "seed": chosen.seed, "sizes": vars(bench.sizes),
        }  # fmt: skip
        rate = self._rate(known)
        picked = {"learning_rate": rate["learning_rate"], "epochs": rate["epochs"]}
        rows = self.work.once(
            "rows", "learning rows", known | picked, lambda folder: learning.learn(bench, folder, **picked)
        )
        shutil.rmtree(self.work.folder / learning.TEACHER, ignore_errors=True)  # large, and needed no more
        parts = {"tokens": self.tokens, "rows": rows}
        tuned = None
        if chosen.fine_tune == "lora":
            key = {"rows": rows.digest, "rank": chosen.lora_rank, "epochs": chosen.lora_epochs}
            tuned = self.work.once("lora", "fine-tuning", key, lambda folder: learning.tune(bench, folder, rows.folder))
            parts["lora"] = tuned
        write_json(self.out / STATE, {"key": self.key})
        export = self._export(rows, tuned)
        parts["export"] = export
        parts |= self._measure(rows, export)
        summary: dict[str, Any] = {name: part.result for name, part in parts.items()}
        summary["tokens"] = {**self.tokens.result, "folder": f"{WORK}/{self.tokens.folder.name}"}
        summary["sweep"] = rate
        summary["passage"] = measures.sample_cut(bench.extension, bench.split.held_out)
        summary["seconds"] = {name: part.seconds for name, part in parts.items()} | {"sweep": rate["seconds"]}
        summary["peak_bytes"] = max(peak_bytes(), *(part.peak for part in parts.values()))
        warned = [self.tokens.result, rows.result, summary.get("lora", {})]
        summary["warnings"] = [line for part in warned for line in part.get("warnings", [])] + _harm(summary)
        return summary

    def _rate(self, known: dict[str, Any]) -> dict[str, Any]:
        """Rate and epochs, as given or by a sweep."""
        chosen = self.bench.settings
        if chosen.learning_rate:
            return {
                "learning_rate": chosen.learning_rate, "epochs": chosen.epochs or EPOCHS, "runs": [], "seconds": 0.0
            }  # fmt: skip
        key = known | {"epochs": chosen.epochs}
        part = self.work.once("sweep", "learning rate", key, lambda folder: sweep(self.bench, folder))
        pace, chosen_epochs = part.result["tokens_per_second"], part.result["epochs"]
        most = self.bench.sizes.train_windows * plan.WINDOW * chosen_epochs
        left = f"; learning takes about {most / pace / 60:.1f} min at this pace" if pace else ""
        self.work.tell(f"  chosen: rate {part.result['learning_rate']:g}, {chosen_epochs} epochs{left}")
        return {**part.result, "seconds": part.seconds}

    def _export(self, rows: Part, tuned: Part | None) -> Part:
        key = {"rows": rows.digest, "lora": tuned and tuned.digest}
        folder = None if tuned is None else tuned.folder
        for _ in range(2):
            part = self.work.once(
                "export", "model folder", key, lambda _: learning.export(self.bench, self.out, rows.folder, folder)
            )
            if (self.out / MODEL).is_dir():
                break
            (part.folder / "done.json").unlink()  # someone removed it: write it again
        return part

    def _measure(self, rows: Part, export: Part) -> dict[str, Part]:
        chosen, bench = self.bench.settings, self.bench
        held, sizes = bench.split.held_out, bench.sizes
        adapted = load_base_model(self.out / MODEL, device=chosen.device, dtype=chosen.dtype)
        models = measures.Models(bench.base, adapted, bench.extension, learning.rows_of(rows.folder, 0))
        key = {"export": export.digest, "seed": chosen.seed, "sizes": vars(sizes)}
        asked = {"continuations": chosen.continuations, "new_tokens": chosen.new_tokens}
        packing = self.work.once("packing", "what a token holds", key, lambda _: measures.packing(models, held))
        return {
            "packing": packing,
            "likelihood": self.work.once(
                "likelihood", "bits per byte", key, lambda _: measures.likelihood(models, held, sizes, chosen.seed)
            ),
            "divergence": self.work.once(
                "divergence", "KL from the base", key, lambda _: measures.divergence(models, held, sizes, chosen.seed)
            ),
            "generation": self.work.once(
                "generation", "continuations", key | asked,
                lambda _: measures.continuations(models, held, chosen, packing.result),
            ),
        }  # fmt: skip


def _harm(summary: dict[str, Any]) -> list[str]:
    """Warn where held-out text is clearly harder for the finished model than for the base."""
    row = next((row for row in summary["likelihood"]["rows"] if row["model"] == "after"), None)
    if row is None or not row["low"] > 0:
        return []
    more = 100 * row["difference"] / (row["bits_per_byte"] - row["difference"])
    return [
        f"held-out text takes {row['difference']:.3f} [{row['low']:.3f}, {row['high']:.3f}] more bits per byte than "
        f"under the base ({more:.1f} %): the model predicts it less well than before. More text, more windows for "
        "each token (--windows-per-token), fewer tokens (--n) or --fine-tune lora may close the gap."
    ]


def _refuse_inside(out: Path, source: Path) -> None:
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise OutError(f"{out} lies inside {source}, so what is written would be read as text. Give another --out.")
