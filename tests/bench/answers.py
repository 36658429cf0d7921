"""Execute the answers that `generation.py` kept and compare the pass counts with the floors.

    VOCABX_DATA=shared/data python tests/bench/answers.py FOLDER/samples.jsonl.gz [--benchmarks humaneval,mbpp]

With `--tokenizer` the answers are first taken out of the raw replies again, as the code here extracts them;
the tokenizer is that of the model which answered. Results go beside the samples as
`results_<benchmark>.jsonl`; a second call continues after them.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

from bench_parts import known_json, table_of

from vocabx_utils.evaluation.answers import extract_answer
from vocabx_utils.evaluation.benchmarks import BENCHMARKS, Problem, benchmark_of, load_benchmark
from vocabx_utils.evaluation.execution import execute
from vocabx_utils.evaluation.failures import failure_table
from vocabx_utils.evaluation.kept import KEPT_FOLDER, kept_ids
from vocabx_utils.evaluation.prompts import Prompt, build_prompt, resolve_prefill
from vocabx_utils.evaluation.scoring import count_passes
from vocabx_utils.files import read_json, read_jsonl, write_json
from vocabx_utils.models import load_tokenizer
from vocabx_utils.statistics import wilson_interval

ROOT = Path(__file__).resolve().parents[2]
# Qwen2.5-Coder-0.5B-Instruct q4_k_m, greedy, quick prompts: passed of all problems
FLOORS = {"humaneval": 91, "mbpp": 161, "bigcodebench": 117, "ds1000": 69}


def extract_again(rows: list[dict[str, Any]], problems: list[Problem], source: str) -> list[dict[str, Any]]:
    """Take every answer out of its raw reply again."""
    tokenizer = load_tokenizer(source)
    known = {problem.task_id: problem for problem in problems}
    fresh = []
    for row in rows:
        problem = known[row["task_id"]]
        prompt = prompt_of(problem, row, tokenizer)
        fresh.append({**row, "solution": extract_answer(problem, prompt, row["raw_solution"])})
    return fresh


def prompt_of(problem: Problem, row: dict[str, Any], tokenizer: Any) -> Prompt:
    """Build the prompt that a row of a samples file answers."""
    style, prefill, *wording = row["settings"].split("/")
    return build_prompt(problem, tokenizer, style=style, prefill=prefill, wording=(wording or ["instruct"])[0])


def is_official(name: str, setting: str) -> bool:
    """Tell whether a setting is the prompt of EvalPlus and BigCodeBench; DS-1000's own is none of ours."""
    return name != "ds1000" and setting.startswith("chat/fence")


def tables(folder: Path) -> str:
    """Return the tables of `docs/evaluation.md` in Markdown: references, answers, sandbox."""
    dropped = []
    for name in BENCHMARKS:
        found = read_json(KEPT_FOLDER / f"{name}.json")
        reasons = Counter(re.split(r"[:(]", text)[0].strip() for text in found["dropped"].values())
        why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "–"
        dropped.append([name, str(found["n_kept"]), str(found["n_total"]), why])
    answers = read_json(folder / "answers.json")
    order = [
        (n, setting) for n in BENCHMARKS for setting in sorted(answers[n], key=lambda s: (not is_official(n, s), s))
    ]
    scores = []
    for name, setting in order:
        row = answers[name][setting]
        interval = wilson_interval(row["passed"], row["problems"])
        chosen = "/".join(setting.split("/")[:2]) == f"chat/{resolve_prefill(name, 'chat', 'auto')}"
        prompt = (f"**{setting}**" if chosen else setting) + " (official)" * is_official(name, setting)
        rate = [f"{interval.estimate:.1%}", f"{interval.low:.1%} to {interval.high:.1%}"]
        scores.append([name, prompt, str(row["passed"]), str(row["problems"]), *rate])
    modes = [
        [mode, f"{row['seconds']:.0f}", f"{row['cpu_seconds']:.0f}", str(row["second_attempts"])]
        for mode, row in read_json(folder / "sandbox.json")["bigcodebench"]["modes"].items()
    ]
    return "\n\n".join([
        table_of(["benchmark", "kept", "of", "dropped because"], dropped, right=(1, 2)),
        table_of(["benchmark", "prompt", "passed", "of", "rate", "95 % interval"], scores, right=(2, 3, 4)),
        table_of(["mode", "seconds", "CPU seconds", "second attempts"], modes, right=(1, 2, 3)),
    ])  # fmt: skip


def main() -> None:
    """Execute benchmark by benchmark and print one line each, then the classes of failures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path, nargs="?", help="left out: only print the tables of docs/evaluation.md")
    parser.add_argument("--benchmarks", default=",".join(BENCHMARKS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", help="extract again: hub id, folder or .gguf of the model that answered")
    parser.add_argument("--fast", action="store_true", help="fork in warm jails")
    parser.add_argument("--report", type=Path, help="JSON file to add the counts to, by benchmark and prompt setting")
    args = parser.parse_args()
    if args.samples is None:
        print(tables(ROOT / "results" / "bench"))
        return
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in read_jsonl(args.samples):
        groups.setdefault(benchmark_of(row["task_id"]), []).append(row)
    for name in (wanted for wanted in args.benchmarks.split(",") if wanted in groups):
        answered = {row["task_id"] for row in groups[name]}
        problems = [problem for problem in load_benchmark(name) if problem.task_id in answered]
        if args.tokenizer:
            groups[name] = extract_again(groups[name], problems, args.tokenizer)
        target = args.samples.with_name(f"results_{name}.jsonl")
        found = execute(groups[name], problems, target, workers=args.workers, fast=args.fast)
        count = count_passes(found, kept_ids([name]))[name]
        print(
            f"{name}: {count.passed_total} of {count.total} (floor {FLOORS[name]}), {count.passed} of {count.kept} kept"
        )
        failures = failure_table({name: found}, {name: groups[name]})
        print(failures.to_string(index=False), flush=True)
        if args.report:
            classes = failures.drop(columns=["variant", "passed"]).iloc[0].to_dict()
            facts = {
                "passed": count.passed_total,
                "problems": count.total,
                "passed_kept": count.passed,
                "kept": count.kept,
                "floor": FLOORS[name],
                "failures": {key: value if isinstance(value, str) else int(value) for key, value in classes.items()},
                "backend": found[0].backend,
                "environment": found[0].env_hash,
            }
            known = known_json(args.report)
            settings = {**known.get(name, {}), groups[name][0]["settings"]: facts}
            write_json(args.report, {**known, name: settings})


if __name__ == "__main__":
    main()
