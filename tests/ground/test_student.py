"""The student computes the family's own embeddings, states and logits, whatever the family does around its blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import FAMILIES, ROWS, WIDTH, N, V, as_base, tiny_family, tiny_model, tokenizers
from torch.nn import functional

from vocabx_utils.models import BaseModel, with_extra_rows
from vocabx_utils.student import LogitTransform, Student, UnsupportedModelError, token_losses

TEXT = "def f(x): groupby dataframe numpy.reshape(x, 3)\n"


def new_rows(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first, second = (0.2 * torch.randn(N, WIDTH, generator=generator) for _ in range(2))
    return first, second


def student(base: BaseModel) -> Student:
    return Student(base.model, V, *new_rows())


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_student_computes_the_familys_own_logits(family: str) -> None:
    base = as_base(tiny_family(family, ROWS))
    input_rows, head_rows = new_rows()
    plain = with_extra_rows(base, input_rows, head_rows, V).eval()
    ids = tokenizers().extended(TEXT, add_special_tokens=False)["input_ids"]
    assert max(ids) >= V
    own = plain(input_ids=torch.tensor([ids])).logits[0, :, : V + N].double()
    log_own = torch.log_softmax(own, -1)
    nats = -log_own[:-1].gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)

    made = Student(base.model, V, input_rows, head_rows)
    torch.testing.assert_close(made.logits(torch.tensor([ids]))[0].double(), own, rtol=1e-4, atol=1e-4)
    found = made.negative_log_likelihood([ids, ids[:5], ids], [1, 1, 7], batch_tokens=30)
    assert found == pytest.approx([float(nats.sum()), float(nats[:4].sum()), float(nats[6:].sum())], rel=1e-4)

    reader = Student(base.model, V, input_rows)  # head rows play no role in a comparison over V
    short, states = reader.encode([ids[:3], ids], batch_size=2)
    assert short.shape == (3, WIDTH)
    compared = reader.log_probabilities(states).double()
    torch.testing.assert_close(compared, torch.log_softmax(own[:, :V], -1), rtol=1e-4, atol=1e-4)
    [layers] = reader.encode([ids], layers=True)
    torch.testing.assert_close(layers[-1], states, rtol=1e-4, atol=1e-4)

    grown = Student(plain, V + N)  # no new rows: any model over the ids that its tokenizer has
    assert grown.negative_log_likelihood([ids]) == pytest.approx([float(nats.sum())], rel=1e-4)


def test_unknown_logit_treatment_is_refused() -> None:
    base = tiny_model()
    base.model.config.logit_wobble = 3.0
    with pytest.raises(UnsupportedModelError, match="logit_wobble"):
        student(base)


def test_a_head_that_is_not_a_plain_product_is_refused() -> None:
    base = tiny_model()
    inner = base.model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        output.logits = output.logits * 1.5
        return output

    base.model.forward = forward  # type: ignore[method-assign]
    for _ in range(2):  # a model that failed once is looked at again
        with pytest.raises(UnsupportedModelError, match="own logits"):
            student(base)


def test_batches_equal_single_texts_left_and_right_padded() -> None:
    model = student(tiny_model())
    generator = torch.Generator().manual_seed(5)
    singles = [torch.randint(0, V + N, (length,), generator=generator) for length in (4, 9, 7)]
    width = 9
    right, left, mask = (torch.zeros(3, width, dtype=torch.long) for _ in range(3))
    for line, ids in enumerate(singles):
        right[line, : len(ids)], left[line, width - len(ids) :], mask[line, width - len(ids) :] = ids, ids, 1
    with torch.no_grad():
        by_right, by_left = model.hidden(right)[0], model.hidden(left, mask)[0]
        for line, ids in enumerate(singles):
            alone = model.hidden(ids[None])[0][0]
            torch.testing.assert_close(by_right[line, : len(ids)], alone, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(by_left[line, width - len(ids) :], alone, rtol=1e-4, atol=1e-5)


def test_only_the_new_rows_are_parameters() -> None:
    model = student(tiny_model())
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {
        "input_rows": (N, WIDTH),
        "head_rows": (N, WIDTH),
    }
    model.logits(torch.tensor([[1, V, 2]])).sum().backward()
    assert model.input_rows.grad is not None and model.input_rows.grad[0].any()
    assert not model.input_rows.grad[1:].any()
    assert all(p.grad is None for p in model.model.parameters())


def test_the_greedy_text_of_the_base_model_stays_without_training() -> None:
    """B36: new rows do not change what is predicted among old tokens; their own mass can be read off."""
    base = tiny_model()
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        own = base.model(input_ids=ids).logits[..., :V]
        ours = student(base).logits(ids)
    torch.testing.assert_close(ours[..., :V], own, rtol=1e-4, atol=1e-5)
    mass = torch.softmax(ours, -1)[..., V:].sum(-1)
    assert ((mass > 0) & (mass < 1)).all()


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="new rows"):
        Student(tiny_model().model, V, torch.zeros(3, WIDTH), torch.zeros(2, WIDTH))
    with pytest.raises(ValueError, match="beyond the 308 rows"):
        Student(tiny_model().model, ROWS + 1)


def test_bad_sequences_are_named() -> None:
    reader = Student(tiny_model().model, V)
    for read in (reader.encode, reader.negative_log_likelihood):
        with pytest.raises(ValueError, match="Sequence 1"):
            read([[1, 2], [V]])
        with pytest.raises(ValueError, match="Sequence 0"):
            read([[]])


def test_scoring_leaves_a_trainable_model_trainable() -> None:
    plain = with_extra_rows(tiny_model(), *new_rows(), V)
    Student(plain, V + N).negative_log_likelihood([[1, 2, 3]])
    assert all(parameter.requires_grad for parameter in plain.parameters())


@pytest.mark.parametrize("positions", [0, 1, 600])
def test_losses_of_tokens_in_parts_are_those_of_float64(positions):
    hidden, head = torch.randn(positions, 8), torch.randn(31, 8)
    targets = torch.randint(31, (positions,))
    transform = LogitTransform(scale=0.5, softcap=3.0)
    wanted = 3.0 * torch.tanh(0.5 * hidden.double() @ head.double().T / 3.0)
    expected = functional.cross_entropy(wanted, targets, reduction="none")
    found = token_losses(hidden, head, targets, transform)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
