"""The question of the thesis at half a billion parameters: do learned rows help a fine-tuned model solve tasks?

    python tests/bench/reproduction.py prepare --model MODEL --out DATA --packages FOLDER                     (no GPU)
    python tests/bench/reproduction.py contrasts                                      (no GPU, before any result)
    python tests/bench/reproduction.py own --model MODEL --data DATA                                               (GPU)
    python tests/bench/reproduction.py pilot --model MODEL --data DATA [--processes K]              (GPU), then score
    python tests/bench/reproduction.py choose                                     (no GPU: settings.json from the pilot)
    python tests/bench/reproduction.py run --model MODEL --data DATA [--arms ARM …] [--seeds N …] [--processes K] (GPU)
    python tests/bench/reproduction.py phase1 --model MODEL --data DATA                                            (GPU)
    python tests/bench/reproduction.py causal --model MODEL --data DATA                                            (GPU)
    python tests/bench/reproduction.py shape                                                                       (GPU)
    python tests/bench/reproduction.py score                               (no GPU: executes answers, writes the tables)
    python tests/bench/reproduction.py judge                                      (no GPU: contrasts, claims, the page)

Everything goes to --results (results/gpu) as soon as it is found, and what is there is not done again: the same
command goes on where a loan of a card ended. `reproduction_arms.py` says what an arm is, `reproduction_run.py` what
is written, `reproduction_spread.py` how `pilot` and `run` take several cards and let arms share one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import reproduction_claims as claims
import reproduction_contrasts as contrasts
import reproduction_data as data
import reproduction_phase1 as phase1
import reproduction_pilot as piloting
import reproduction_run as running
import reproduction_score as scoring
import reproduction_shape as shape
import reproduction_spread as spread
from reproduction_arms import CORE


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    actions = {
        "prepare": data.prepare, "contrasts": contrasts.write_contrasts, "own": piloting.own, "pilot": spread.pilot,
        "choose": scoring.choose, "run": spread.run, "phase1": phase1.phase1, "causal": phase1.causal,
        "shape": shape.shape, "score": scoring.score, "judge": claims.judge,
    }  # fmt: skip
    for name, action in actions.items():
        command = commands.add_parser(name)
        command.set_defaults(action=action)
        command.add_argument("--results", type=Path, default=Path("results/gpu"))
        if name in ("own", "pilot", "run", "causal", "phase1"):
            running.add_arguments(command, ("base", *CORE))
        if name in ("pilot", "run"):
            spread.add_arguments(command)
        if name == "pilot":
            command.add_argument("--sweep", nargs="+", default=list(piloting.SWEEP))
            command.set_defaults(answer=["humaneval", "mbpp"])
        if name in ("phase1", "causal"):
            phase1.add_arguments(command, name)
    data.add_arguments(commands.choices["prepare"])
    contrasts.add_arguments(commands.choices["contrasts"])
    scoring.add_arguments(commands.choices["score"])
    shape.add_arguments(commands.choices["shape"])
    claims.add_arguments(commands.choices["judge"])
    options = parser.parse_args(arguments)
    options.words = sys.argv[1:] if arguments is None else arguments
    options.started = time.perf_counter()
    options.action(options)


if __name__ == "__main__":
    main()
