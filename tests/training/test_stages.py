"""What a stage frees and refuses: matrices, blocks, LoRA patterns, and the proof by checksums."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import chat_base
from training.test_finetuning import SMALL, setting

from vocabx_utils.config import FineTuneConfig
from vocabx_utils.training import stages


def test_base_that_was_not_extended():
    base = chat_base()
    stage = stages.plan_stages(FineTuneConfig(**SMALL))[0]
    with pytest.raises(ValueError, match=r"300 input rows.*up to 302.*with_extra_rows"):
        stages.open_stage(copy.deepcopy(base.model), stage, FineTuneConfig(**SMALL), new_ids=range(300, 303))


def test_tied_model_is_refused():
    model = copy.deepcopy(chat_base().model)
    model.lm_head.weight = model.model.embed_tokens.weight
    with pytest.raises(ValueError, match="tied"):
        stages.check_extended(model, range(0))


@pytest.mark.parametrize(("pattern", "message"), [("query_proj", "matches none"), (".*lm_head|.*q_proj", "not inside")])
def test_lora_pattern_that_does_not_fit(pattern, message):
    model, _, new_ids, _, config = setting(lora_target=pattern)
    stage = stages.plan_stages(config)[1]
    with pytest.raises(ValueError, match=message):
        stages.open_stage(model, stage, config, new_ids=new_ids)


def test_one_block_cannot_be_halved(tmp_path):
    model = chat_base(layers=1).model
    stage = stages.plan_stages(FineTuneConfig(**{**SMALL, "stages": ("c",)}))[0]
    with pytest.raises(ValueError, match="one block, which cannot be trained by halves"):
        stages.check_stage(model, stage, FineTuneConfig(**SMALL), range(0))


def test_experts_inside_a_block_are_not_taken_for_blocks():
    model = chat_base().model
    for block in model.model.layers:
        block.experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(4))
    assert stages.block_prefix(model) == "model.layers" and stages.blocks_of(model) is model.model.layers
