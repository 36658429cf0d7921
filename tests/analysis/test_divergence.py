"""KL by position against a plain two-model loop in float64; windows; layers; the lens."""

import numpy as np
import pytest
import torch
from tiny import FAMILIES, ROWS, as_base, tiny_family, word_base
from tiny import WIDTH as D
from tiny import V as FIRST

from vocabx_utils.analysis import divergence, mechanisms
from vocabx_utils.models import with_extra_rows

V = 60  # words of the tiny base model
MERGES = {(5, 6): V, (7, 8, 9): V + 1}


def merge_text(ids: list[int], merges: dict[tuple[int, ...], int]) -> divergence.PairedText:
    """Replace each sequence of `merges` by its new id; the pairs are where both have read the same ids."""
    extended: list[int] = []
    pairs: list[tuple[int, int]] = []
    at = 0
    while at < len(ids):
        match = next((key for key in merges if tuple(ids[at : at + len(key)]) == key), None)
        step = len(match) if match else 1
        extended.append(merges[match] if match else ids[at])
        at += step
        pairs.append((at - 1, len(extended) - 1))
    return divergence.PairedText(tuple(ids), tuple(extended), np.array(pairs).reshape(-1, 2))


def texts(count: int = 5, seed: int = 0) -> list[divergence.PairedText]:
    rng = np.random.default_rng(seed)
    made = []
    for at in range(count):
        ids = rng.integers(10, V, size=9 + 3 * at).tolist()
        made.append(merge_text([*ids[:4], 5, 6, *ids[4:7], 7, 8, 9, *ids[7:]], MERGES))
    return made


def new_rows(seed: int = 1) -> torch.Tensor:
    return torch.randn(2, D, generator=torch.Generator().manual_seed(seed))


def naive_kl(base, text: divergence.PairedText, rows: torch.Tensor) -> list[float]:
    student = with_extra_rows(base, rows, torch.randn_like(rows)).eval()
    p_logits = base.model(torch.tensor([text.original_ids])).logits[0].detach().double()
    q_logits = student(torch.tensor([text.extended_ids])).logits[0].detach().double()
    found, started = [], False
    for i, j in text.pairs.tolist():
        started = started or text.extended_ids[j] >= V
        if started:
            p, q = p_logits[i, :V].softmax(0), q_logits[j, :V].softmax(0)
            found.append(float(sum(a * (a / b).log() for a, b in zip(p, q, strict=True))))
    return found


def test_kl_equals_the_two_model_loop_whatever_the_batch() -> None:
    base, rows = word_base(), new_rows()
    expected = [kl for text in texts() for kl in naive_kl(base, text, rows)]
    for batch_size in (1, 3, 8):
        meter = divergence.KLMeter(base, texts(), V, batch_size)
        assert meter.positions == len(expected)
        assert meter.per_position(rows) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert meter.by_text(rows).shape == (len(meter.texts),)
    assert meter.by_text(rows).sum() == pytest.approx(np.sum(expected), rel=1e-4)
    assert min(expected) > 0


@pytest.mark.parametrize("kept_bytes", [0, 1 << 28])
def test_kl_does_not_depend_on_chunks_or_on_what_is_kept(monkeypatch: pytest.MonkeyPatch, kept_bytes: int) -> None:
    base, rows = word_base(), new_rows()
    expected = divergence.KLMeter(base, texts(), V).per_position(rows)
    monkeypatch.setattr(divergence, "_CHUNK", 7)
    monkeypatch.setattr(divergence, "_KEPT_BYTES", kept_bytes)
    assert divergence.KLMeter(base, texts(), V).per_position(rows) == pytest.approx(expected, rel=1e-6)


def test_kl_is_zero_without_a_difference_and_positions_before_new_tokens_are_left_out() -> None:
    base = word_base()
    text = merge_text([1, 2, 3, 4], {(3,): V})  # a "new token" of one subtoken with its row: the same model
    meter = divergence.KLMeter(base, [text], V)
    assert meter.positions == 2
    assert meter.per_position(base.input_rows[3:4]) == pytest.approx([0, 0], abs=1e-6)
    with pytest.raises(ValueError, match="None of the 1 texts"):
        divergence.KLMeter(base, [merge_text([1, 2, 3], {})], V)


def test_table_names_places() -> None:
    base = word_base()
    table = divergence.KLMeter(base, texts(1), V).table(new_rows())
    assert table["since_new"].tolist()[:5] == [0, 1, 2, 3, 0]
    assert table.loc[table["merged"], "token"].tolist() == [V, V + 1]
    assert (table["kl"] >= 0).all()


def test_causal_sweep_on_a_model_recovers_a_planted_sparse_change() -> None:
    """The trained row is the only subtoken's row moved in two coordinates: two coordinates bring KL to zero."""
    base = word_base()
    text = merge_text([1, 2, 3, 4, 11, 12], {(3,): V, (11,): V + 1})
    end = base.input_rows[[3, 11]].clone()
    start = end.clone()
    start[0, [4, 20]] += 3.0
    start[1, [1, 7]] -= 3.0
    meter = divergence.KLMeter(base, [text], V)
    result = mechanisms.causal_sweep(meter, start, end, [1, 2, 8], draws=3)
    assert result.kl_end == pytest.approx(0, abs=1e-6)
    assert result.kl_start > 0.01
    assert result.coordinates_needed(0.999) == 2
    recovered = result.table.groupby(["keep", "k"])["recovered"].mean()
    assert recovered["top", 2] == pytest.approx(1, abs=1e-4)
    assert recovered["random", 2] < 0.9


def test_windows_end_at_common_boundaries() -> None:
    for text in texts():
        for cut in divergence.windows(text, V, before=3, after=4):
            assert merge_text(list(cut.original_ids), MERGES).extended_ids == cut.extended_ids
            rebuilt = merge_text(list(cut.original_ids), MERGES)
            assert np.array_equal(rebuilt.pairs, cut.pairs)
            assert np.array_equal(rebuilt.merged, cut.merged)
            assert max(cut.extended_ids) >= V
    assert len(list(divergence.windows(texts()[0], V, before=1, after=1))) == 2
    assert len(list(divergence.windows(texts()[0], V, before=1, after=1, limit=1))) == 1
    assert not list(divergence.windows(merge_text([1, 2], {}), V))


def test_hidden_similarity_of_equal_models_is_one() -> None:
    base = word_base()
    text = merge_text([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], {(3,): V})
    same = divergence.hidden_similarity(base, [text], base.input_rows[3:4], V)
    assert sorted(same["layer"].unique()) == [0, 1, 2]
    assert set(same["place"]) == {"boundary", "1 after", "2-4 after", "5+ after"}
    assert same["cosine"].to_numpy() == pytest.approx(1, abs=1e-6)
    assert same["distance"].to_numpy() == pytest.approx(0, abs=1e-5)
    other = divergence.hidden_similarity(base, texts(), new_rows(), V)
    at_boundary = other[(other["place"] == "boundary") & (other["layer"] == 0)]
    assert at_boundary["n"].item() == 10
    assert at_boundary["cosine"].item() < 0.9
    embeddings_after = other[(other["place"] == "1 after") & (other["layer"] == 0)]
    assert embeddings_after["cosine"].item() == pytest.approx(1)  # same old token on both sides


def test_logit_lens_ends_in_the_models_own_prediction() -> None:
    base, rows, text = word_base(), new_rows(), texts(1)[0]
    pair = int(np.flatnonzero(text.merged)[1])
    table = divergence.logit_lens(base, text, pair, rows, V, k=2)
    assert set(table["reader"]) == {"teacher 1", "teacher 2", "teacher 3", "student"}
    last = table[table["layer"] == 2].set_index("reader")
    i, j = text.pairs[pair]
    logits = base.model(torch.tensor([text.original_ids[: i + 1]])).logits[0, -1, :V].detach()
    assert last.loc["teacher 3", "top"][0] == base.tokenizer.decode([int(logits.argmax())])
    assert last.loc["teacher 3", "probability"] == pytest.approx(float(logits.softmax(0).max()), rel=1e-4)
    assert last.loc["teacher 3", "kl"] == pytest.approx(0, abs=1e-6)
    meter = divergence.KLMeter(base, [text], V).table(rows)
    assert last.loc["student", "kl"] == pytest.approx(meter.loc[meter["extended"] == j, "kl"].item(), rel=1e-4)
    with pytest.raises(ValueError, match="not a new one"):
        divergence.logit_lens(base, text, 0, rows, V)


def test_bad_pairs_are_named() -> None:
    with pytest.raises(ValueError, match="outside the text"):
        divergence.PairedText((1,), (1,), np.array([[0, 3]]))
    with pytest.raises(ValueError, match=r"expected \(P, 2\)"):
        divergence.PairedText((1,), (1,), np.array([0]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_any_family_does_not_diverge_from_itself(family: str) -> None:
    """A new token that stands for one old token and has its row is that old token: KL is 0."""
    base = as_base(tiny_family(family, ROWS))
    pairs = np.stack([np.arange(6)] * 2, 1)
    text = divergence.PairedText((5, 6, 7, 8, 9, 10), (5, 6, FIRST, 8, 9, 10), pairs)
    meter = divergence.KLMeter(base, [text], FIRST)
    assert meter.per_position(base.input_rows[7:8]) == pytest.approx([0.0] * 4, abs=1e-5)
    lens = divergence.logit_lens(base, text, 2, base.input_rows[7:8], FIRST, k=1)
    last = lens[lens.layer == lens.layer.max()]
    assert last.kl.to_numpy() == pytest.approx(0.0, abs=1e-5)
