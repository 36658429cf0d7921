"""Where does extending pay? New tokens against plain LoRA on the same documents, in one domain and one model a call.

    python tests/bench/phrases.py prepare --model MODEL --texts german --root FOLDER --out DATA …          (no GPU)
    python tests/bench/domains.py pilot   --model MODEL --data DATA --label NAME                           (LoRA's rate)
    python tests/bench/domains.py measure --model MODEL --data DATA --label NAME [--n 800 3200] [--arms ARM …]
    python tests/bench/domains.py train   --model MODEL --data DATA --label NAME --keep FOLDER      (several on a card)
    python tests/bench/domains.py speed   --model MODEL --data DATA --label NAME --keep FOLDER        (alone on a card)
    python tests/bench/domains.py page                                                                     (no GPU)

`measure` writes one line an arm (see `domain_arms`) to OUT/<label>-<text>.jsonl at once and skips arms that are there.
LoRA's rate is the one that suited the base best in `pilot`, and the recipe of our rows the one with which words and
phrases suited best, both on training documents that were left out there; or those of --lora-rate and --recipe.

`speed` reads how fast measured arms generate, in turns with each other and the base, into OUT/speed/; `train` makes
their models again before it, so that the reading has the card for itself.

Rows that phase 1 learned stay in --keep, with what they took, so that a later call finds them for the arm with LoRA;
so do the models of `train`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import domain_report
from bench_parts import facts, free, known_lines, label_of, refuse_others, while_time_lasts
from domain_arms import RECIPES, THESIS, Arm, arms_of, recipe_of, settings_of, told_settings
from domain_bench import Bench, student_of

from vocabx_utils import files
from vocabx_utils.measured import DOMAIN_ARMS
from vocabx_utils.training.loop import NonFiniteLossError
from vocabx_utils.training.starts import Start

_LEFT_OUT = 64  # training documents that judge the pilot's rates


def measure(options: argparse.Namespace) -> None:
    """Measure the arms that are not there yet, while time is left; SystemExit at the end where one failed."""
    path = _results(options)
    tried = options.out / "pilot" / path.name
    rate = options.lora_rate or float(_best(tried, "lora_rate"))
    chosen = options.recipe or _best(tried, "recipe")
    options.recipe, options.thesis = (recipe_of(name).name for name in (chosen, options.thesis))
    rows = known_lines(path)
    refuse_others(path, rows, told_settings(settings_of(options, rate), options), "--out")
    done = {(row["arm"], row["n"]) for row in rows if row["seed"] == options.seed}
    left = [arm for arm in arms_of(options.arms, options.n) if (arm.name, arm.n) not in done]
    print(f"{path.stem}: {len(left)} arms to measure", flush=True)
    if not left:
        return
    bench, failed = Bench(options, rate), []
    for arm in _while_time_lasts(left, options):
        began = time.perf_counter()
        try:
            row = bench.measure_arm(arm)
        except NonFiniteLossError as error:
            failed.append(f"{arm.name}, N = {arm.n}: {error}")
            continue
        finally:
            free()
        took = time.perf_counter() - began
        files.append_jsonl(path, row | {"took_s": round(took, 1)} | facts())
        shown = {key: row[key] for key in ("saved", "bpb", "kl_identical", "kl_last")}
        print(arm.name, arm.n, shown, f"{took:.0f} s", flush=True)
    if failed:
        raise SystemExit("\n".join(failed))


def train(options: argparse.Namespace) -> None:
    """Make the models of measured arms again, and keep them for `speed`."""
    if options.keep is None:
        raise SystemExit("train: say with --keep where the models are to stay")
    if not (left := _measured(options)):
        return
    bench = _bench(options)
    for arm in _while_time_lasts(left, options):
        _, _, told = bench.model_of(arm, write=True)
        print(arm.name, arm.n, told, flush=True)
        free()


def speed(options: argparse.Namespace) -> None:
    """Read how fast the measured arms generate, those that were not read yet together: their lines share `reading`."""
    if not (left := _measured(options)):
        return
    path = options.out / "speed" / _results(options).name
    reading = len({line.get("reading", 0) for line in known_lines(path)})
    for row in _bench(options).speed_of_arms(left):
        files.append_jsonl(path, row | {"reading": reading} | facts())
        print(row["arm"], row["n"], row["speed_gain"], row["speed_range"], flush=True)


def _measured(options: argparse.Namespace) -> list[Arm]:
    """Each measured arm whose speed was not read yet."""
    path = _results(options)
    if not path.exists():
        raise SystemExit(f"{path} is not there: run `domains.py measure` with the same label first")
    done = {(row["arm"], row["n"]) for row in known_lines(options.out / "speed" / path.name)}
    wanted = {(row["arm"], row["n"]) for row in files.read_jsonl(path) if row["arm"] != "base"} - done
    return [arm for arm in arms_of(options.arms, options.n) if (arm.name, arm.n) in wanted]


def _bench(options: argparse.Namespace) -> Bench:
    """The bench as it was when these arms were measured: models are trained, or found, with those settings."""
    first = files.read_jsonl(_results(options))[0]
    settings = first["settings"]
    names = ("recipe", "thesis", "epochs", "lora_rank", "tokens_per_step", "max_length")
    vars(options).update({name: settings[name] for name in names}, lora_epochs=settings["b_epochs"])
    options.documents, options.validation = first["train_documents"], first["documents"]
    return Bench(options, settings["lora_rate"])


def _while_time_lasts(arms: list[Arm], options: argparse.Namespace) -> Iterator[Arm]:
    """Yield arms, and tell those for which no time is left."""
    told = "{} are left out, from {}, N = {}, on"
    return while_time_lasts(arms, options, 1.2, lambda n, arm: told.format(n, arm.name, arm.n))


def _results(options: argparse.Namespace) -> Path:
    """File of a model and a domain, told before the model is loaded."""
    kind = files.read_json(options.data / "texts.json")["kind"]
    return Path(options.out / f"{label_of(options.label, options.model)}-{kind}.jsonl")


def _best(path: Path, name: str) -> Any:
    """Return what did best in the pilot, among rates of LoRA or among recipes."""
    rows = [row for row in known_lines(path) if name in row]
    if not rows:
        option = f"--{name.replace('_', '-')}"
        raise SystemExit(f"{path} has no {name}: run `domains.py pilot` with the same label first, or give {option}")
    return min(rows, key=lambda row: row["bpb"])[name]


def pilot(options: argparse.Namespace) -> None:
    """Tune the base with each rate, and learn rows by each recipe, judged on training documents that are left out."""
    path = options.out / "pilot" / _results(options).name
    known = known_lines(path)
    tried = {row.get("recipe") or row["lora_rate"] for row in known}
    rates = [rate for rate in options.rates if rate not in tried]
    recipes = [name for name in (recipe_of(name).name for name in options.recipes) if name not in tried]
    if not rates and not recipes:
        return
    options.recipe = recipe_of(options.recipes[0]).name  # until one is tried
    bench = Bench(options)
    held = min(_LEFT_OUT, len(bench.train) // 8)
    bench.train, bench.validation = bench.train[:-held], bench.train[-held:]
    bench.planned = bench.examples(bench.train, bench.base.tokenizer)

    def tell(about: dict[str, Any], start: Start, stage: str, took: dict[str, Any]) -> None:
        bpb = float(sum(bench.bits(student_of(start), start.tokenizer)) / sum(bench.sizes()))
        files.append_jsonl(path, about | {"bpb": bpb, "documents": held, stage: took} | facts())
        print(f"{about}: {bpb:.4f} bits per byte, {took['steps']} steps, {took['seconds']:.0f} s", flush=True)
        free()

    for rate in rates:
        bench.settings = replace(bench.settings, lora_rate=rate)
        start, _ = bench.start_of(Arm("base_lora", 0, "", "", True))
        tuned, lora = bench.tuned(start)
        tell({"lora_rate": rate}, tuned, "lora", lora)
    for name in recipes:
        bench.settings = replace(bench.settings, recipe=name)
        start, phase1 = bench.start_of(Arm("both", min(options.n), "both", "ours", False))
        tell({"recipe": name}, start, "phase1", phase1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, action in (
        ("pilot", pilot), ("measure", measure), ("train", train), ("speed", speed), ("page", page),
    ):  # fmt: skip
        command = commands.add_parser(name)
        command.set_defaults(action=action)
        command.add_argument("--out", type=Path, default=Path("results/domains"))
        if name == "page":
            command.add_argument("--docs", type=Path, default=Path("docs"))
            continue
        _add_options(command)
        if name == "pilot":
            command.add_argument("--rates", type=float, nargs="+", default=[5e-5, 1e-4, 2e-4, 4e-4])
            command.add_argument("--recipes", nargs="+", default=RECIPES, help="of our rows, as recipe_runs.py reads")
            continue
        command.add_argument("--arms", nargs="+", default=list(DOMAIN_ARMS), help=", ".join(DOMAIN_ARMS))
        command.add_argument("--lora-rate", type=float, default=0.0, help="that of the pilot unless given")
        command.add_argument("--recipe", help="of our rows, as recipe_runs.py reads it; that of the pilot unless given")
        if name != "speed":
            command.add_argument("--minutes", type=float, default=9.0, help="start nothing that would end later")
            continue
        command.add_argument("--speed", type=int, default=5, help="readings of generation that count")
        command.add_argument("--prompts", type=int, default=64, help="prompts of the speed measurement")
        command.add_argument("--reply", type=int, default=512, help="tokens of the base's reply there")
    options = parser.parse_args(arguments)
    options.started = time.perf_counter()
    options.action(options)


def _add_options(command: argparse.ArgumentParser) -> None:
    """What pilot and measure share."""
    command.add_argument("--model", required=True, help="name, folder, hub id or GGUF file")
    command.add_argument("--data", type=Path, required=True, help="folder that `phrases.py prepare` made")
    command.add_argument("--label", help="name of the model in the results")
    command.add_argument("--n", type=int, nargs="+", default=[800, 3200])
    command.add_argument("--thesis", default=THESIS, help="of the thesis's rows, likewise")
    command.add_argument("--epochs", type=int, default=2, help="passes of phase 1 over the documents")
    command.add_argument("--lora-epochs", type=int, default=2)
    command.add_argument("--lora-rank", type=int, default=128)
    command.add_argument("--tokens-per-step", type=int, default=8192, help="of LoRA, in tokens of the base")
    command.add_argument("--token-budget", type=int, default=16_384, help="tokens of one pass")
    command.add_argument("--max-length", type=int, default=4096, help="tokens of a document, which is never cut")
    command.add_argument("--documents", type=int, default=3000, help="training documents, at most")
    command.add_argument("--validation", type=int, default=300, help="validation documents, at most")
    command.add_argument("--keep", type=Path, help="folder for learned rows, which arms with LoRA then find")
    command.add_argument("--seed", type=int, default=0)


def page(options: argparse.Namespace) -> None:
    """Fill docs/domains.md and draw its figure."""
    domain_report.write(options.out, options.docs)


if __name__ == "__main__":
    main()
