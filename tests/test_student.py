"""Training, evaluation and analysis compute one and the same student: the family's own, whatever it does to logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tiny import FAMILIES, ROWS, WIDTH, N, V, as_base, tiny_family, tokenizers

from vocabx_utils.analysis import divergence
from vocabx_utils.evaluation.likelihood import Span, score_spans
from vocabx_utils.models import with_extra_rows
from vocabx_utils.training.extended import ExtendedModel

TEXT = "def f(x): groupby dataframe numpy.reshape(x, 3)\n"


def new_rows(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first, second = (0.2 * torch.randn(N, WIDTH, generator=generator) for _ in range(2))
    return first, second


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_three_wings_compute_the_familys_own_logits(family: str) -> None:
    base = as_base(tiny_family(family, ROWS))
    input_rows, head_rows = new_rows()
    plain = with_extra_rows(base, input_rows, head_rows, V).eval()
    ids = tokenizers().tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert max(ids) >= V
    own = plain(input_ids=torch.tensor([ids])).logits[0, :, : V + N].double()

    trained = ExtendedModel(base, input_rows, head_rows)
    torch.testing.assert_close(trained.logits(torch.tensor([ids]))[0].double(), own, rtol=1e-4, atol=1e-4)

    [states] = divergence.encode(base, [ids], input_rows, V)
    found = divergence._log_probabilities(base, states)
    torch.testing.assert_close(found.double(), torch.log_softmax(own[:, :V], -1), rtol=1e-4, atol=1e-4)

    offsets = tokenizers().tokenizer(TEXT, return_offsets_mapping=True)["offset_mapping"]
    [score] = score_spans(plain, tokenizers().tokenizer, [Span("text", TEXT, offsets[1][0])])
    nats = torch.nn.functional.cross_entropy(own[:-1], torch.tensor(ids[1:]), reduction="sum")
    assert score.bits == pytest.approx(float(nats) / math.log(2), rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_does_not_diverge_from_itself(family: str) -> None:
    """A new token that stands for one old token and has its row is that old token: KL is 0."""
    base = as_base(tiny_family(family, ROWS))
    pairs = np.stack([np.arange(6)] * 2, 1)
    text = divergence.PairedText((5, 6, 7, 8, 9, 10), (5, 6, V, 8, 9, 10), pairs)
    meter = divergence.KLMeter(base, [text], V)
    assert meter.per_position(base.input_rows[7:8]) == pytest.approx([0.0] * 4, abs=1e-5)
    lens = divergence.logit_lens(base, text, 2, base.input_rows[7:8], V, k=1)
    last = lens[lens.layer == lens.layer.max()]
    assert last.kl.to_numpy() == pytest.approx(0.0, abs=1e-5)
