"""Cosines against float64 loops and closed forms; tables by epoch from a run; what is missing or broken."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fixtures.tiny_run import build_run
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabx_utils import files, rows
from vocabx_utils.analysis import similarity


def naive_cosine(a: list[float], b: list[float]) -> float:
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(math.fsum(x * x for x in a)) / math.sqrt(math.fsum(y * y for y in b))


@given(st.integers(1, 40), st.integers(0, 1000), st.floats(1e-3, 1e3))
@settings(max_examples=50, deadline=None)
def test_cosine_against_a_loop_and_scale(width: int, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, width, generator=generator)
    expected = naive_cosine(a.tolist(), b.tolist())
    assert similarity.cosine(a, b) == pytest.approx(expected, abs=1e-7)
    assert similarity.cosine(a * scale, b) == pytest.approx(expected, abs=1e-5)
    assert similarity.cosine(a, -b) == pytest.approx(-expected, abs=1e-7)


def test_cosine_of_zero_nan_and_other_widths() -> None:
    values = similarity.cosine(torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [0.0, 2.0]]), torch.tensor([0.0, 1.0]))
    assert np.isnan(values).tolist() == [True, True, False]
    assert values[2] == 1.0
    with pytest.raises(ValueError, match="same D"):
        similarity.cosine(torch.ones(3), torch.ones(4))


def test_subtoken_cosines_against_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix, new = torch.randn(20, 8, generator=generator), torch.randn(4, 8, generator=generator)
    subtokens = [(3,), (1, 2), (4, 5, 6), (7, 8, 9, 10)]
    found = similarity.subtoken_cosines(new, matrix, subtokens)
    by_mean = similarity.subtoken_cosines(new, matrix, subtokens, "cosine_of_mean")["intermediate"]
    for at, ids in enumerate(subtokens):
        row, vectors = new[at].tolist(), [matrix[i].tolist() for i in ids]
        assert found["first"][at] == pytest.approx(naive_cosine(row, vectors[0]))
        assert found["last"][at] == pytest.approx(naive_cosine(row, vectors[-1]))
        if len(ids) < 3:
            assert math.isnan(found["intermediate"][at])
            assert math.isnan(by_mean[at])
        else:
            inner = vectors[1:-1]
            assert found["intermediate"][at] == pytest.approx(np.mean([naive_cosine(row, v) for v in inner]))
            assert by_mean[at] == pytest.approx(naive_cosine(row, np.mean(inner, axis=0).tolist()))


def test_no_token_has_an_intermediate() -> None:
    found = similarity.subtoken_cosines(torch.ones(2, 3), torch.ones(5, 3), [(0, 1), (2, 3)])
    assert np.isnan(found["intermediate"]).all()
    assert found["first"] == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("subtokens", "message"),
    [([(0, 1)], "do not fit"), ([(0,), ()], "no subtokens"), ([(0,), (9,)], "has 5 rows")],
)
def test_subtokens_that_do_not_fit(subtokens: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        similarity.subtoken_cosines(torch.ones(2, 3), torch.ones(5, 3), subtokens)


def test_mean_init_cosine_is_one_over_root_k_for_orthogonal_subtokens() -> None:
    matrix = torch.eye(6)
    values = similarity.mean_init_cosines(matrix, [(0,), (0, 1), (0, 1, 2), (2, 3, 4, 5)])
    assert values == pytest.approx([1, 1 / math.sqrt(2), 1 / math.sqrt(3), 1 / 2])


def test_table_of_a_run_shows_what_was_planted(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, width=512, vocab_size=200)
    tokens = rows.read_tokens(tiny.run)
    histories = rows.read_histories(tiny.run)
    assert list(histories) == ["mean_ce", "mean_kl_first", "mean_kl_last", "mean_untrained", "random_kl_last"]
    assert histories["mean_untrained"].epochs == (0,)
    table = similarity.cosines_by_epoch(histories.values(), tokens, tiny.original)  # type: ignore[arg-type]
    assert len(table) == (4 * 3 + 1) * 2 * 3 * len(tokens)
    means = similarity.summarize(table).set_index(["variant", "matrix", "position", "epoch"])
    assert means.loc[("random_kl_last", "input", "first", 0), "mean"] == pytest.approx(0, abs=0.05)
    last = means.xs(2, level="epoch").xs("input", level="matrix")["mean"]
    assert last["random_kl_last", "first"] > last["random_kl_last", "last"] > last["random_kl_last", "intermediate"]
    assert last["mean_ce", "last"] > last["mean_ce", "first"]
    counted = means.loc[("mean_ce", "input", "intermediate", 1)]
    assert (counted["n"], counted["missing"]) == (8, 4)
    by_length = similarity.summarize(table, ("variant", "matrix", "position", "epoch", "subtokens"))
    assert set(by_length["subtokens"]) == {2, 3, 4}


def test_missing_epochs_are_named_and_skipped(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, epochs=4)
    folder = tiny.run.folder / "03_phase1_training" / "mean_ce" / "rows"
    (folder / "epoch_02.safetensors").unlink()
    history = rows.read_history(tiny.run, "mean_ce")
    assert history.epochs == (0, 1, 3, 4)
    assert history.missing == (2,)
    table = similarity.cosines_by_epoch([history], rows.read_tokens(tiny.run), tiny.original)  # type: ignore[arg-type]
    assert sorted(table["epoch"].unique()) == [0, 1, 3, 4]


def test_nearest_rows() -> None:
    matrix = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [-1.0, 0.1], [5.0, 5.0]])
    indices, cosines = similarity.nearest_rows(torch.tensor([2.0, 0.1]), matrix, k=10)
    assert indices.tolist() == [0, 4, 1, 3]  # the zero row is nobody's neighbour
    assert cosines == pytest.approx(similarity.cosine(matrix[indices], torch.tensor([2.0, 0.1])), abs=1e-6)
    assert similarity.nearest_rows(torch.zeros(2), matrix)[0].size == 0
    assert similarity.nearest_rows(torch.tensor([float("nan"), 1.0]), matrix)[0].size == 0
    assert similarity.neighbour_text(torch.tensor([2.0, 0.0]), matrix, str, 2) == "0 4"
    assert similarity.neighbour_text(torch.zeros(2), matrix, str).startswith("none")


def test_what_the_means_leave_out_is_said(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, variants=("mean_ce", "mean_kl_last"), epochs=3)
    tokens = list(rows.read_tokens(tiny.run))
    table = similarity.cosines_by_epoch(rows.read_histories(tiny.run).values(), tokens, tiny.original)  # type: ignore[arg-type]
    [nothing] = similarity.remarks(table, rows.read_histories(tiny.run).values())
    assert nothing.startswith("Every row has a direction")
    folder = tiny.run.folder / "03_phase1_training" / "mean_ce" / "rows"
    (folder / "epoch_01.safetensors").unlink()
    broken = files.read_tensors(folder / "epoch_03.safetensors")
    broken["input_rows"][0] = 0
    broken["input_rows"][1] = float("nan")
    files.write_tensors(folder / "epoch_03.safetensors", broken)
    tokens[2] = dataclasses.replace(tokens[2], subtokens=tokens[2].subtokens[:1])
    histories = rows.read_histories(tiny.run)
    table = similarity.cosines_by_epoch(histories.values(), tokens, tiny.original)  # type: ignore[arg-type]
    assert similarity.remarks(table, histories.values()) == [
        "mean_ce: no checkpoint of epoch 1; its curves skip it.",
        "mean_ce, epoch 3: 2 of 12 input rows (or the rows of their subtokens) are zero or not numbers; they have no "
        "direction and are left out.",
        "1 of 12 tokens have one subtoken, which is their first and their last.",
    ]


def test_frequency_groups_are_ordered_and_keep_ties_together() -> None:
    counts = pd.Series([5, 1, 1, 1, 9, 40, 9], index=list("abcdefg"))
    groups = similarity.frequency_groups(counts)
    assert groups.index.tolist() == list("abcdefg")
    assert groups.tolist() == ["1-5", "1-5", "1-5", "1-5", "9-40", "9-40", "9-40"]
    assert groups.cat.categories.tolist() == ["1-5", "9-40"]
    assert similarity.frequency_groups(pd.Series([3, 3, 3])).unique().tolist() == ["3"]
    with pytest.raises(ValueError, match="groups is 0"):
        similarity.frequency_groups(counts, 0)


def test_own_subtokens_among_the_nearest_rows() -> None:
    matrix = torch.eye(6)
    rows_ = torch.stack([matrix[[0, 1]].mean(0), matrix[[2, 3]].mean(0), matrix[5]])
    assert similarity.own_neighbours(rows_, matrix, [(0, 1), (2, 4), (5, 5)]) == pytest.approx((1 + 0.5 + 1) / 3)
    assert similarity.own_neighbours(rows_[:1], matrix, [(3, 4)]) == 0


def test_last_cosines_stand_above_those_of_the_thesis(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    found = similarity.cosines_by_epoch(
        rows.read_histories(tiny.run).values(),
        rows.read_tokens(tiny.run),
        tiny.original,  # type: ignore[arg-type]
    )
    summary = similarity.summarize(found, draws=20)
    table = similarity.beside_thesis(summary, ["mean_ce", "random_kl_last"])
    assert set(table.index) == {
        "mean init, CE",
        "random init, KL (last)",
        "thesis: random init, CE",
        "thesis: random init, KL",
    }
    expected = found.query("variant == 'mean_ce' and matrix == 'head' and epoch == 2 and position == 'last'")["cosine"]
    assert table.loc["mean init, CE", ("head", "last")] == pytest.approx(expected.mean())
    assert table.loc["thesis: random init, KL", ("head", "first")] == pytest.approx(0.1254, abs=1e-4)
    assert table.loc["thesis: random init, CE", ("input", "last")] == pytest.approx(0.0243, abs=1e-4)
