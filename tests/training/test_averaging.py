"""Averaged rows: the mean over the last steps, written out, also where a training was killed among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import new_tokens, tiny_model
from training.phase1_parts import phase1_data, settings

from vocabx_utils import files
from vocabx_utils.training.averaging import Average
from vocabx_utils.training.loop import EpochDone, StepDone
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import Phase1Training, new_student
from vocabx_utils.training.phase1_stage import train_variant


def test_the_mean_is_that_of_the_last_steps_only() -> None:
    values = torch.arange(12.0).reshape(6, 2)
    moved = {"rows": torch.zeros(2)}
    average = Average(moved, first=3)
    for step, value in enumerate(values, 1):
        moved["rows"].copy_(value)
        average.add(step)
    average.settle()
    torch.testing.assert_close(moved["rows"], values[2:].mean(0))
    assert average.count == 4
    untouched = {"rows": torch.ones(2)}
    Average(untouched, first=3).settle()
    assert untouched["rows"].tolist() == [1.0, 1.0]


def test_a_training_ends_with_the_mean_and_validates_it(tmp_path: Path) -> None:
    base = tiny_model()
    data, recipe = phase1_data(base, tmp_path), parse_variant("mean_kl_last_ce0.3")
    ends: dict[float, Any] = {}
    for share in (0.0, 0.5):
        config = settings(average_last=share)
        student = new_student(recipe, base, new_tokens(), config)
        training = Phase1Training(recipe, student, data, config)
        seen: list[torch.Tensor] = []
        for event in training.run():
            if isinstance(event, StepDone):
                seen.append(torch.stack([rows.detach().double().clone() for rows in training.parameters.values()]))
            elif isinstance(event, EpochDone):
                record = event.record
        rows = torch.stack([rows.detach().double() for rows in training.parameters.values()])
        ends[share] = seen, rows, record
    (plain, last, before), (steps, mean, after) = ends[0.0], ends[0.5]
    assert torch.equal(torch.stack(plain), torch.stack(steps))  # the average changes no step
    assert torch.equal(last, plain[-1])
    wanted = torch.stack(steps[len(steps) // 2 :]).mean(0)
    torch.testing.assert_close(mean, wanted, rtol=1e-5, atol=1e-7)
    assert after["kl_last"] != before["kl_last"] and after["train_loss"] == before["train_loss"]


def test_killed_among_averaged_steps_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, name = tiny_model(), "mean_kl_last"
    data, config = phase1_data(base, tmp_path / "teacher"), settings(average_last=0.6)
    step = Phase1Training.step

    def stop(self: Phase1Training, indices: list[int]) -> torch.Tensor:
        if self.done == 7:
            raise KeyboardInterrupt
        return step(self, indices)

    monkeypatch.setattr(Phase1Training, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        train_variant(name, base, new_tokens(), data, config, tmp_path / "broken")
    kept = files.read_tensors(tmp_path / "broken" / "checkpoint.safetensors")
    assert int(kept["averaged"]) > 0
    monkeypatch.undo()
    ends = []
    for folder in ("broken", "whole"):
        train_variant(name, base, new_tokens(), data, config, tmp_path / folder)
        ends.append(files.read_tensors(tmp_path / folder / "rows" / "epoch_02.safetensors"))
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
