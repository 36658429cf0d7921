"""When blocks are fused, and that a run goes on as it began."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import tiny_model
from transformers import PreTrainedModel

from vocabx_utils.config import ConfigError, FineTuneConfig, Phase1Config
from vocabx_utils.training import fusing
from vocabx_utils.training.sharding import recompute_blocks, unwrapped
from vocabx_utils.training.stages import blocks_of


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    """A model that says it lies on a GPU; nothing is run."""
    monkeypatch.setattr(PreTrainedModel, "device", property(lambda _: torch.device("cuda")))
    return tiny_model().model


def decide(model: PreTrainedModel, choice: str, seconds: float) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusing, "pass_seconds", lambda *_: seconds)
        return fusing.fuse_where_it_pays(model, choice, 100 * 8 * 64, (8, 64))  # 100 passes


def test_a_long_run_is_fused_and_a_short_one_is_not(on_a_card: PreTrainedModel) -> None:
    limit = fusing.COMPILE_SECONDS / (100 * fusing.SAVED_SHARE)  # seconds of a pass
    assert "blocks are not fused" in decide(on_a_card, "auto", 0.99 * limit) and not fusing.is_fused(on_a_card)
    assert "blocks are fused" in decide(on_a_card, "auto", 1.01 * limit) and fusing.is_fused(on_a_card)
    fusing.unfuse(on_a_card)
    assert not fusing.is_fused(on_a_card)


def test_a_choice_is_not_measured(on_a_card: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fusing, "pass_seconds")
    assert fusing.fuse_where_it_pays(on_a_card, "off", 10**12, (8, 64)) == "" and not fusing.is_fused(on_a_card)
    assert fusing.fuse_where_it_pays(on_a_card, "on", 1, (8, 64)) == "" and fusing.is_fused(on_a_card)


def test_nothing_is_decided_on_a_cpu(tmp_path: Path) -> None:
    model = tiny_model().model
    assert decide(model, "auto", 1e9) == "" and not fusing.is_fused(model)
    fusing.settle(model, tmp_path)
    assert not list(tmp_path.iterdir()) and fusing.settled("auto", tmp_path) == "auto"


def test_a_run_goes_on_as_it_began(on_a_card: PreTrainedModel, tmp_path: Path) -> None:
    fusing.fuse(on_a_card)
    fusing.settle(on_a_card, tmp_path)
    assert fusing.settled("auto", tmp_path) == "on"
    assert fusing.settled("off", tmp_path) == "off"  # what is asked for counts first


def test_a_pass_is_timed_and_leaves_no_gradient() -> None:
    model = tiny_model().model
    assert fusing.pass_seconds(model, 2, 8) > 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_chosen_is_refused() -> None:
    for config in (Phase1Config, FineTuneConfig):
        assert config.from_params().compile_blocks == "auto"
        with pytest.raises(ConfigError, match="compile_blocks"):
            config.from_params(compile_blocks="fast")


def test_a_family_whose_blocks_are_not_found_runs_as_it_is(
    on_a_card: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: PreTrainedModel) -> None:
        raise ValueError("2 lists of 3 modules")

    monkeypatch.setattr(fusing, "blocks_of", none)
    assert decide(on_a_card, "auto", 1e9) == "blocks are not fused: 2 lists of 3 modules"
    assert not fusing.is_fused(on_a_card)
    with pytest.raises(ValueError, match="2 lists"):  # asked for, it is refused
        decide(on_a_card, "on", 0.0)


def test_of_sharded_blocks_the_arithmetic_alone_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_model()
    recompute_blocks(base.model)
    monkeypatch.setattr(fusing, "is_sharded", lambda model: True)
    note = fusing.fuse_where_it_pays(base.model, "on", 10**9, (2, 8))
    inner = [unwrapped(block) for block in blocks_of(base.model)]
    assert note == "" and fusing.is_fused(base.model)
    assert all(block._compiled_call_impl is None and "forward" in vars(block) for block in inner)
    fusing.unfuse(base.model)
    assert not fusing.is_fused(base.model) and not any("forward" in vars(block) for block in inner)
    monkeypatch.undo()
    fusing.fuse(base.model)
    assert all(block._compiled_call_impl is not None for block in inner)
