"""Phase 1 in memory: the same rows as in a run folder, from plain objects and texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import N, V, new_tokens, texts, tiny_model, tokenizers
from training.phase1_parts import settings

from vocabx_utils.training.phase1 import learn_rows, prepare
from vocabx_utils.training.phase1_stage import train_variant
from vocabx_utils.vocabulary.extend import add_tokens

SETTINGS = {"epochs": 3, "learning_rate": 2e-2, "batch_size": 4, "window": 0}


def words() -> list[str]:
    names = tokenizers().extended.convert_ids_to_tokens([token.id for token in new_tokens()])
    return [name.replace("Ġ", " ") for name in names]


def test_rows_are_learned_and_nothing_else_changes() -> None:
    base = tiny_model()
    before = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    learned = learn_rows(base.model, tokenizers().original, words(), texts(), **SETTINGS)
    assert learned.extension.V == V and learned.input_rows.shape == learned.head_rows.shape
    assert len(learned.input_rows) == learned.extension.N >= N
    assert learned.metrics[-1]["kl_last"] < learned.metrics[0]["kl_last"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.model.state_dict().items())


def test_they_are_those_of_a_run_folder(tmp_path: Path) -> None:
    base, config = tiny_model(), settings(**SETTINGS)
    learned = learn_rows(base.model, tokenizers().original, words(), texts(), token_budget=120, **SETTINGS)
    extension = add_tokens(tokenizers().original, words())
    data = prepare(base, extension, texts(), texts(), replace(config, variants=("mean_kl_last",)))
    result = train_variant("mean_kl_last", base, extension.tokens, data, config, tmp_path)
    kept = [{k: v for k, v in row.items() if k != "seconds"} for row in learned.metrics]
    assert kept == [{k: v for k, v in row.items() if k != "seconds"} for row in result.metrics]


def test_a_tied_model_that_trains_stays_so() -> None:
    from tiny import tiny_decoder

    model = tiny_decoder(V, tie_word_embeddings=True).requires_grad_(True).train()
    learn_rows(model, tokenizers().original, words(), texts(8), "ce", epochs=1, window=0)
    assert model.training and model.lm_head.weight is model.model.embed_tokens.weight
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_texts_without_new_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="free of new tokens"):
        learn_rows(tiny_model().model, tokenizers().original, words(), ["x = 1\n", "y = 2\n"], window=0)
