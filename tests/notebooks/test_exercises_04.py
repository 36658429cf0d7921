"""Answers to the exercises of notebook 04, and what it works out by hand, computed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import chat_base

from vocabx_utils import corpus
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.training import stages

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "04_fine_tuning.ipynb"


def answers() -> list[str]:
    """The hidden answers, in order."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.findall(r"<details><summary>Answer</summary>(.*?)</details>", prose, flags=re.S)


def comment_share() -> Callable[[Sequence[str]], float]:
    """The function of the second answer, as it stands there."""
    held: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```\n", answers()[1], flags=re.S)[-1], held)
    found: Callable[[Sequence[str]], float] = held["comment_share"]
    return found


def linear_layers(config: FineTuneConfig) -> list[torch.nn.Linear]:
    return [m for m in stages.blocks_of(chat_base().model).modules() if isinstance(m, torch.nn.Linear)]


@pytest.mark.parametrize(("rows", "columns"), [(576, 576), (576, 1536)])
def test_first_answer_names_the_rank_at_which_lora_trains_as_many_numbers(rows: int, columns: int) -> None:
    equal = rows * columns / (rows + columns)
    first = next(rank for rank in range(1, rows + 1) if rank * (rows + columns) > rows * columns)
    assert f"{equal:g}"[:5] in answers()[0]
    assert rows == columns or f"rank {first} " in answers()[0]


@pytest.mark.parametrize("rank", [1, 4])
def test_lora_trains_rank_times_in_and_out_for_each_linear_layer(rank: int) -> None:
    config = FineTuneConfig(stages=("b",), lora_rank=rank, lora_alpha=rank)
    layers = linear_layers(config)
    (stage,) = stages.plan_stages(config)
    counted = stages.trainable_table(stages.open_stage(chat_base().model, stage, config))
    assert counted["parameters"].sum() == sum(rank * (m.in_features + m.out_features) for m in layers)


def test_comments_are_counted_and_strings_that_look_like_them_are_not() -> None:
    answer = "```python\nx = 1  # two\ny = '# no'\n```"
    code = answer.removeprefix("```python\n").removesuffix("```")
    assert comment_share()([answer]) == len("# two") / len(code)


def test_second_answer_names_the_share_of_comments_in_the_corpus() -> None:
    assert "Between a tenth and an eighth" in answers()[1]
    pairs = corpus.pairs_from_packages(("matplotlib", "seaborn"))
    assert 0.1 < comment_share()([pair.answer for pair in pairs]) < 0.125
