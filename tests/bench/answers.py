"""Execute the answers that ``generation.py`` kept and compare the pass counts with the floors.

    VOCABX_DATA=shared/data python tests/bench/answers.py FOLDER/samples.jsonl.gz [--benchmarks humaneval,mbpp]

Results go beside the samples as ``results_<benchmark>.jsonl``; a second call continues after them.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

from vocabx_utils.evaluation.benchmarks import BENCHMARKS, kept_ids, load_benchmark
from vocabx_utils.evaluation.execution import execute
from vocabx_utils.evaluation.scoring import count_passes, failure_table, split_by_benchmark

# Qwen2.5-Coder-0.5B-Instruct q4_k_m, greedy, quick prompts: passed of all problems
FLOORS = {"humaneval": 91, "mbpp": 161, "bigcodebench": 117, "ds1000": 69}


def main() -> None:
    """Execute benchmark by benchmark and print one line each, then the classes of failures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("--benchmarks", default=",".join(BENCHMARKS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fast", action="store_true", help="fork in warm jails")
    args = parser.parse_args()
    opener = gzip.open if args.samples.suffix == ".gz" else open
    with opener(args.samples, "rt", encoding="utf-8") as file:
        groups = split_by_benchmark(json.loads(line) for line in file)
    for name in (wanted for wanted in args.benchmarks.split(",") if wanted in groups):
        answered = {row["task_id"] for row in groups[name]}
        problems = [problem for problem in load_benchmark(name) if problem.task_id in answered]
        target = args.samples.with_name(f"results_{name}.jsonl")
        found = execute(groups[name], problems, target, workers=args.workers, fast=args.fast)
        kept = kept_ids(name)
        count = count_passes(found, {name: kept[0]} if kept else None)[name]
        print(
            f"{name}: {count.passed_total} of {count.total} (floor {FLOORS[name]}), {count.passed} of {count.kept} kept"
        )
        print(failure_table({name: found}, {name: groups[name]}).to_string(index=False), flush=True)


if __name__ == "__main__":
    main()
