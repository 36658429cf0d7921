"""Find a recipe for the new rows that leads at equal training tokens, and prove it on texts that were not chosen by.

    python tests/bench/recipes.py prepare --setting qwen-python --model MODEL --out DATA/qwen-python     (no GPU)
    python tests/bench/recipes.py sweep   --setting qwen-python --model MODEL --data DATA [--runs PATTERN …]
    python tests/bench/recipes.py choose                                                                 (no GPU)
    python tests/bench/recipes.py final   --setting qwen-python --model MODEL --data DATA
    python tests/bench/recipes.py judge                                                                  (no GPU)

Headers need their splits to choose by and to report besides, from packages of which no other split holds a file (see
`recipe_packages`):

    python tests/bench/recipes.py prepare-packages --split packages --setting qwen-headers --model MODEL --data DATA
                                                   --packages FOLDER                                     (no GPU)
    python tests/bench/recipes.py prepare-packages --split packages_sweep --setting qwen-headers --model MODEL
                                                   --data DATA --packages OTHER --beside FOLDER          (no GPU)

`sweep` trains runs (see `recipe_runs`) and measures them on the sweep split, a line each in RESULTS/<setting>.jsonl,
at once; runs that are there are skipped, failures are kept too. `choose` names finalists and references by these lines.
`final` trains them with several seeds, which draw the snippets and their order, and writes the sums of every text of
the report split. `judge` compares, writes RESULTS/verdict.json and fills docs/recipes.md.

A line of the sweep holds the settings, `tokens` read in training and `sampled` ones (together the budget), examples,
seconds of training, and of the sweep split KL (nats) at identical places and at merged spans, CE at new targets, bits
per byte of student and base, and the same of the first values.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_parts import facts, free, known_json, known_lines, rounded, synchronise, while_time_lasts
from recipe_data import SETTINGS, draw, prepare, read_examples, read_tokens, split_of
from recipe_packages import SPLITS, check_texts, prepare_packages
from recipe_runs import Run, choose_runs, parse_run
from recipe_samples import sampled_examples
from recipe_verdict import BASE, choose, judge

from vocabx_utils import files
from vocabx_utils.config import Phase1Config
from vocabx_utils.models import BaseModel, load_base_model
from vocabx_utils.student import Student
from vocabx_utils.training.batches import epoch_batches
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.fusing import fuse
from vocabx_utils.training.loop import NonFiniteLossError
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import Phase1Data, Phase1Training, Scores, new_student
from vocabx_utils.training.teacher import TeacherStates, ask_teacher
from vocabx_utils.training.validation import TextScores, evaluate_texts

MEASURED = ("kl_identical", "kl_identical_all", "kl_last", "ce_new", "bpb", "base_bpb")
_KEPT = 3  # sets of training examples whose teacher stays in memory


class Bench:
    """A model, a setting, and what its runs share: examples, teacher's states, validations of first values."""

    def __init__(self, options: argparse.Namespace, split: str) -> None:
        self.options, self.split, self.folder = options, split, options.data / options.setting
        self.content = files.read_json(self.folder / "setting.json")
        with timed("model"):
            self.base: BaseModel = load_base_model(options.model)
            if self.base.vocab_size != self.content["V"]:
                raise SystemExit(f"{options.model} has V = {self.base.vocab_size}, the setting {self.content['V']}")
            if self.base.device.type == "cuda" and not options.plain:
                fuse(self.base.model)
        self.tokens = read_tokens(self.content)
        self.budget: int = options.tokens or self.content["tokens_of_a_run"]
        self.judged, self.judged_teacher = self.read_judged()
        self.pools: dict[str, AlignedSet] = {}
        self.known: dict[tuple[str, int], tuple[AlignedSet, TeacherStates, int]] = {}
        self.starts: dict[str, Scores | None] = {}

    def read_judged(self) -> tuple[AlignedSet, TeacherStates]:
        """Texts of the split, as many as are asked for, and the teacher's states."""
        with timed(f"texts of {self.split} and their teacher"):
            found = read_examples(self.folder, self.split)
            texts = AlignedSet(found.examples[: self.options.judged], vocab_size=found.vocab_size, n_new=found.n_new)
            return texts, self.ask(texts, likelihood=True)

    def ask(self, examples: AlignedSet, likelihood: bool = False) -> TeacherStates:
        """Run the teacher over a set."""
        budget = self.options.token_budget
        return ask_teacher(self.base, examples, token_budget=budget, likelihood=likelihood).to(self.base.device)

    def pool(self, name: str) -> AlignedSet:
        """All training examples of a kind."""
        if name not in self.pools:
            self.pools[name] = read_examples(self.folder, name)
        return self.pools[name]

    def examples(self, data: str, seed: int) -> tuple[AlignedSet, TeacherStates, int]:
        """What a run with a seed learns from, the teacher's states, and how many of its tokens were sampled."""
        key, sampled = (data, seed), 0
        if key not in self.known:
            while len(self.known) >= _KEPT:
                del self.known[next(iter(self.known))]
                free()
            with timed(f"{data} {seed}: examples and teacher"):
                if data == "sampled":
                    chosen, sampled = sampled_examples(
                        self.base, self.content, self.pool("snippets"), self.budget, seed
                    )
                else:
                    chosen = draw(self.pool(data), self.budget, seed, by_token=data == "snippets")
                self.known[key] = chosen, self.ask(chosen), sampled
        return self.known[key]

    def config(self, run: Run, seed: int) -> Phase1Config:
        """Settings of a run."""
        return Phase1Config.from_params(
            variants=[f"mean_{run.objective}"], learning_rate=run.rate, head_learning_rate=run.head_rate,
            head_init=run.head_init, warmup=run.warmup, rate_after=run.after, average_last=run.average,
            head_fit=run.fit,
            ce_decay=run.fade, token_sampling=run.sampling, batch_size=run.batch, epochs=self.options.epochs, seed=seed,
            token_budget=self.options.token_budget, require_improvement=False, compile_blocks="off",
        )  # fmt: skip

    def train(self, run: Run, seed: int, judged: tuple[AlignedSet, TeacherStates]) -> tuple[Student, dict[str, Any]]:
        """Train a run; return the student and what is to be told of the training, `judged` after it included."""
        train, teacher, sampled = self.examples(run.data, seed)
        config, recipe = self.config(run, seed), parse_variant(f"mean_{run.objective}")
        student = new_student(recipe, self.base, self.tokens, config)
        data = Phase1Data(train, judged[0], teacher, judged[1])
        training = Phase1Training(recipe, student, data, config, start=self.starts.get(run.head_init))
        records = [event.record for event in training.run() if event.record is not None]
        self.starts.setdefault(run.head_init, training.start)
        steps = [
            step
            for epoch in range(1, self.options.epochs + 1)
            for step in epoch_batches(train, run.batch, seed=seed, epoch=epoch, shares=training.shares)
        ]
        told = {
            "tokens": int(sum(training.facts.tokens[step].sum() for step in steps)),
            "sampled": sampled, "examples": len(train), "read_again": train.tokens if run.fit else 0,
            "seconds": round(sum(record["seconds"] for record in records), 2),
            "start": {key: rounded(records[0][key]) for key in ("kl_identical", "kl_last", "bpb", "ce_new")},
        }  # fmt: skip
        return student, told | {key: rounded(records[-1][key]) for key in MEASURED}


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long a part took."""
    began = time.perf_counter()
    yield
    synchronise()
    print(f"  {what}: {time.perf_counter() - began:.1f} s", flush=True)


def _split(options: argparse.Namespace, part: str) -> str:
    """Name the file to read on; SystemExit where a split of packages is not the one that was told of."""
    split = split_of(options.setting, part)
    if split != part:
        check_texts(options, split)
    return split


def _lines(path: Path, split: str) -> list[dict[str, Any]]:
    """Lines that are there; SystemExit where they were read on another split."""
    rows = known_lines(path)
    if others := {row["split"] for row in rows} - {split}:
        raise SystemExit(f"{path} holds lines of {', '.join(sorted(others))}, not of {split}: move it away")
    return rows


# --- sweep ----------------------------------------------------------------------------------------------------------


def sweep(options: argparse.Namespace) -> None:
    """Measure the runs that are not there yet, while time is left."""
    path, split = options.results / f"{options.setting}.jsonl", _split(options, "sweep")
    known = {row["run"]: row for row in _lines(path, split)}
    wanted = [run for run in choose_runs(options.runs, options.rounds) if run.name not in known]
    print(f"{options.setting}: {len(wanted)} runs to measure, {len(known)} are there", flush=True)
    if not wanted:
        return
    bench = Bench(options, split)
    for run in while_time_lasts(wanted, options, 1.3, lambda n, run: f"{n} runs are left out, from {run.name} on"):
        began = time.perf_counter()
        same = next((row for row in known.values() if row["settings"] == run.settings), None)
        row = same | {"copied": True} if same else _measured(bench, run)
        row |= {"run": run.name, "family": run.family}
        files.append_jsonl(path, row)
        known[run.name] = row
        took = time.perf_counter() - began
        shown = " ".join(f"{key} {row[key]:.4f}" for key in ("kl_identical", "kl_last", "bpb") if row.get(key))
        print(f"{run.name}: {row.get('error', shown)}, {row.get('seconds', 0):.1f} of {took:.1f} s", flush=True)


def _measured(bench: Bench, run: Run) -> dict[str, Any]:
    facts_of_run = {
        "setting": bench.options.setting, "settings": run.settings, "split": bench.split, "seed": 0,
        "epochs": bench.options.epochs, "texts": len(bench.judged), "budget": bench.budget,
        **{key: value for key, value in vars(run).items() if key != "family"},
    }  # fmt: skip
    try:
        _, told = bench.train(run, 0, (bench.judged, bench.judged_teacher))
    except NonFiniteLossError as error:  # a rate too high is a result
        told = {"error": str(error)[:200]}
    return facts_of_run | told | facts()


# --- final ----------------------------------------------------------------------------------------------------------


def final(options: argparse.Namespace) -> None:
    """Train finalists and references with every seed, and write what each text of a report split comes to."""
    path, split = options.results / "final" / f"{options.setting}.jsonl", _split(options, "report")
    names = _final_runs(options)
    known = {(row["run"], row["seed"]) for row in _lines(path, split)}
    wanted = [(seed, parse_run(name)) for seed in range(options.seeds) for name in names]
    wanted = [(seed, run) for seed, run in wanted if (run.name, seed) not in known]
    print(f"{options.setting}: {len(wanted)} trainings, {len(known)} lines are there", flush=True)
    if not wanted:
        return
    bench = Bench(options, split)
    # a training ends with a validation: here of a single text, since all of them are measured text by text
    one = AlignedSet(bench.judged.examples[:1], vocab_size=bench.judged.vocab_size, n_new=bench.judged.n_new)
    little = one, bench.ask(one, likelihood=True)
    if (BASE, 0) not in known:
        files.append_jsonl(path, _base_row(bench))
    for seed, run in while_time_lasts(
        wanted, options, 1.3, lambda n, one: f"{n} trainings are left out, from {one[1].name}, seed {one[0]}, on"
    ):
        began = time.perf_counter()
        student, told = bench.train(run, seed, little)
        found = evaluate_texts(student, bench.judged, bench.judged_teacher, token_budget=options.token_budget)
        row = {
            "run": run.name, "family": run.family, "setting": options.setting, "split": split, "seed": seed,
            **{key: told[key] for key in ("tokens", "sampled", "examples", "seconds")},
            **{key: _listed(values) for key, values in vars(found).items()}, **facts(),
        }  # fmt: skip
        files.append_jsonl(path, row)
        print(f"{run.name}, seed {seed}: {_shown(found)}, {time.perf_counter() - began:.1f} s", flush=True)


def _final_runs(options: argparse.Namespace) -> list[str]:
    """The runs that are named for the report split; SystemExit where none are."""
    named = known_json(options.results / "chosen.json").get("runs", {}).get(options.setting, [])
    if not (options.runs or named):
        raise SystemExit(f"no runs are named for {options.setting}: let `sweep` measure some, then `choose`")
    return list(dict.fromkeys(options.runs or named))


def _shown(found: TextScores) -> str:
    means = [found.kl_identical.sum() / found.n_identical.sum(), found.kl_last.sum() / max(1, found.n_last.sum())]
    return f"{means[0]:.4f} {means[1]:.4f} {found.nats.sum() / np.log(2) / found.n_bytes.sum():.4f}"


def _base_row(bench: Bench) -> dict[str, Any]:
    """What each text comes to under the base model and its own tokenizer."""
    texts = [example.original_ids.tolist() for example in bench.judged.examples]
    base = Student(bench.base.model, bench.base.vocab_size)
    nats = np.array(base.negative_log_likelihood(texts, batch_tokens=bench.options.token_budget))
    n_bytes = [example.n_original_bytes for example in bench.judged.examples]
    return {"run": BASE, "seed": 0, "setting": bench.options.setting, "split": bench.split,
            "nats": _listed(nats), "n_bytes": n_bytes}  # fmt: skip


def _listed(values: np.ndarray) -> list[float | int]:
    """Five or six digits a text: its rounding is far below what differs between texts."""
    if np.array_equal(values, np.round(values)):
        return [int(value) for value in values]
    return [float(f"{value:.6g}") for value in values]


# --- command line ---------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, action in (
        ("prepare", prepare),
        ("sweep", sweep),
        ("choose", choose),
        ("final", final),
        ("judge", judge),
        ("prepare-packages", prepare_packages),
    ):
        command = commands.add_parser(name)
        command.set_defaults(action=action)
        if name != "prepare":
            command.add_argument("--results", type=Path, default=Path("results/recipes"))
        if name == "judge":
            command.add_argument("--docs", type=Path, default=Path("docs"))
        if name in ("choose", "judge"):
            continue
        command.add_argument("--setting", choices=SETTINGS, required=True)
        command.add_argument("--model", required=True, help="name, folder, hub id or GGUF file")
        if name == "prepare-packages":
            command.add_argument("--split", choices=SPLITS, required=True, help="to report (packages) or to choose by")
            command.add_argument("--data", type=Path, required=True, help="folder of the settings that prepare made")
            command.add_argument("--packages", type=Path, required=True, help="a folder of unpacked Debian packages")
            command.add_argument("--beside", type=Path, help="that of the other split's, where that split is there")
            command.add_argument("--root", type=Path, help="the folder of headers that prepare read")
            command.add_argument("--judged", type=int, default=300, help="documents")
            command.add_argument("--characters", type=int, default=3000, help="of a document")
            continue
        if name == "prepare":
            command.add_argument("--out", type=Path, required=True)
            command.add_argument("--root", type=Path, help="another folder of texts; german needs it")
            command.add_argument("--n", type=int, default=400, help="new tokens")
            command.add_argument("--least", type=int, default=20, help="training examples of each new token")
            command.add_argument("--window", type=int, default=50, help="tokens of a snippet")
            command.add_argument("--tokens", type=int, default=760_000, help="training tokens of a run")
            command.add_argument("--training-bytes", type=int, default=32_000_000)
            command.add_argument("--judged-bytes", type=int, default=2_500_000, help="of sweep and report, each")
            command.add_argument("--judged", type=int, default=300, help="documents of sweep and report, each")
            command.add_argument("--characters", type=int, default=3000, help="of a document")
            command.add_argument("--min-count", type=int, default=15)
            command.add_argument("--min-files", type=int, default=8)
            continue
        command.add_argument("--data", type=Path, required=True, help="folder of the settings that prepare made")
        command.add_argument("--runs", nargs="+", default=["*"] if name == "sweep" else None, help="patterns or names")
        command.add_argument("--tokens", type=int, default=0, help="training tokens; those of the setting unless given")
        command.add_argument("--epochs", type=int, default=1)
        command.add_argument("--token-budget", type=int, default=16_384, help="tokens of one forward pass")
        command.add_argument("--judged", type=int, default=200 if name == "sweep" else 300, help="documents, at most")
        command.add_argument("--minutes", type=float, default=9.0, help="start nothing that would end later")
        command.add_argument("--plain", action="store_true", help="do not fuse the blocks")
        if name == "sweep":
            command.add_argument("--rounds", type=int, default=12, help="runs of each family, the first ones")
        if name == "final":
            command.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    options.started = time.perf_counter()
    options.action(options)


if __name__ == "__main__":
    main()
