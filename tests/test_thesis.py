"""The published numbers agree with each other: counts with p-values, examples with their index pairs."""

import math

import pytest

from vocabx_utils.analysis import thesis


def two_proportion_p(passed_a: int, passed_b: int, total: int) -> float:
    pooled = (passed_a + passed_b) / (2 * total)
    z = (passed_a - passed_b) / total / math.sqrt(pooled * (1 - pooled) * 2 / total)
    return math.erfc(abs(z) / math.sqrt(2))


@pytest.mark.parametrize("row", [row for row in thesis.RESULTS if row.p_value is not None])
def test_printed_p_values_follow_from_the_counts(row: thesis.ResultRow) -> None:
    p = two_proportion_p(row.combined, thesis.REFERENCE.combined, thesis.COMBINED_TOTAL)
    if row.p_is_bound:
        assert p < row.p_value
    else:
        assert p == pytest.approx(row.p_value, abs=5e-4)


def test_counts_named_in_the_text() -> None:
    combined = {(row.variant, row.recipe): row.combined for row in thesis.RESULTS}
    assert combined["mean_kl_first", "lora"] == max(combined.values()) == 556
    assert combined["random_kl_first", "lora"] == min(combined.values()) == 443
    assert combined["mean_ce", "full"] == combined["mean_kl_first", "full"] == 486 < combined["base", "none"]
    shares = thesis.results_table().set_index(["variant", "recipe"])
    assert round(100 * shares.loc[("base", "none"), "bigcodebench_share"], 2) == 20.84
    assert round(100 * shares.loc[("mean_kl_first", "lora"), "ds1000_share"], 2) == 36.60


def test_cosine_curves() -> None:
    assert len(thesis.COSINE_CURVES) == 12
    assert all(curve.epochs == tuple(range(13)) for curve in thesis.COSINE_CURVES)
    assert thesis.cosine_curve("input", "kl", "last").cosine[-1] > thesis.cosine_curve("input", "ce", "last").cosine[-1]
    over = [c for c in thesis.COSINE_CURVES if c.cosine[-1] > thesis.COSINE_BOUND]
    assert {(c.matrix, c.position) for c in over} == {("head", "first")}
    assert len(thesis.cosine_table()) == 12 * 13
    with pytest.raises(ValueError, match="'mse'"):
        thesis.cosine_curve("input", "mse", "first")


def test_both_objectives_start_from_the_same_rows() -> None:
    starts = {(c.matrix, c.position): c.cosine[0] for c in thesis.COSINE_CURVES if c.objective == "kl"}
    assert all(c.cosine[0] == starts[c.matrix, c.position] for c in thesis.COSINE_CURVES)


def test_sequential_losses_last_epoch_lowers_training_and_raises_validation() -> None:
    table = thesis.sequential_table()
    for _, curve in table.groupby(["variant", "split"]):
        last_two = curve.sort_values("epoch")["loss"].to_numpy()[-2:]
        validation = curve["split"].iloc[0] == "validation"
        assert (last_two[1] > last_two[0]) == validation


@pytest.mark.parametrize("example", [thesis.ALIGNMENT_EXAMPLE, thesis.LOSS_PIPELINE, thesis.POSITION_MAPPING])
def test_examples_cover_every_position_once(example: thesis.AlignmentExample) -> None:
    assert all(example.original[i] == example.extended[j] for i, j in example.similar)
    seen_original = [i for i, _ in example.similar] + [i for group, _ in example.divergent for i in group]
    seen_extended = [j for _, j in example.similar] + [j for _, group in example.divergent for j in group]
    assert sorted(seen_original) == list(range(len(example.original)))
    assert sorted(seen_extended) == list(range(len(example.extended)))
    for original, extended in example.divergent:
        assert "".join(example.original[i] for i in original) == "".join(example.extended[j] for j in extended)


def test_alignment_example_text_and_lengths() -> None:
    assert "".join(thesis.ALIGNMENT_EXAMPLE.extended) == "int CellConnectDLS(void) { return 0; }"
    assert (len(thesis.ALIGNMENT_EXAMPLE.original), len(thesis.ALIGNMENT_EXAMPLE.extended)) == (17, 14)
    assert (len(thesis.LOSS_PIPELINE.original), len(thesis.LOSS_PIPELINE.extended)) == (17, 15)


def test_hyperparameters_name_what_is_not_stated() -> None:
    phase1 = thesis.hyperparameter_table("phase1").set_index("name")["value"]
    assert phase1["learning rate"] == 4.2e-4
    assert phase1["batch size"] == "not stated"
    with pytest.raises(ValueError, match="phase9"):
        thesis.hyperparameter_table("phase9")
