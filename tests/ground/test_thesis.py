"""The published numbers agree with each other: counts with p-values, examples with their index pairs."""

import json
import math
from pathlib import Path

import pytest

from vocabx_utils import thesis


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
    assert round(100 * thesis.RESULTS[0].bigcodebench / thesis.BIGCODEBENCH_TOTAL, 2) == 20.84
    assert round(100 * thesis.REFERENCE.ds1000 / thesis.DS1000_TOTAL, 2) == 36.60
    assert (thesis.COMBINED_TOTAL, thesis.REFERENCE.combined) == (1951, 556)


def test_what_the_thesis_holds_against_its_claims_follows_from_its_numbers() -> None:
    combined = {(row.variant, row.recipe): row.combined for row in thesis.RESULTS}
    better = sorted((n for (name, recipe), n in combined.items() if recipe == "lora"), reverse=True)
    assert combined["random_untrained", "lora"] == better[1] == 492
    assert f"({better[2]}, {better[3]} and {better[4]})" in thesis.ALSO["C7"] and len(better) == 5
    ends = {(c.matrix, c.objective, c.position): c.cosine[-1] for c in thesis.COSINE_CURVES}
    for value in (ends["input", "kl", "last"], ends["input", "ce", "last"]):
        assert f"({value:.3f})" in thesis.ALSO["C4"]
    low, high = sorted(ends["head", objective, "first"] for objective in ("kl", "ce"))
    assert f"{low:.3f} and {high:.3f}" in thesis.ALSO["C6"]
    base, best = thesis.RESULTS[0], thesis.REFERENCE
    mean_ce = next(row for row in thesis.RESULTS if (row.variant, row.recipe) == ("mean_ce", "lora"))
    assert best.ds1000 > mean_ce.ds1000 and best.bigcodebench > mean_ce.bigcodebench
    gains = f"{best.ds1000 - base.ds1000} problems of DS-1000 and {best.bigcodebench - base.bigcodebench} of BigCode"
    assert gains in thesis.ALSO["C14"]


def test_every_number_names_its_place() -> None:
    data = json.loads(Path(thesis.__file__).with_suffix(".json").read_text(encoding="utf-8"))
    lists = ("hyperparameters", "axes", "cosines", "sequential_losses")
    tables = [data["results"], data["tokenization"], *data["numbers"].values(), *data["examples"].values()]
    assert all(item["label"] for item in [*tables, *(item for name in lists for item in data[name])])
    assert list(thesis.CLAIMS) == [f"C{number}" for number in range(1, 18)]
    assert set(thesis.ALSO) < set(thesis.CLAIMS)
    counts = {name: len(data[name]) for name in lists} | {"results": len(thesis.RESULTS)}
    assert counts == {"hyperparameters": 31, "axes": 7, "cosines": 12, "sequential_losses": 6, "results": 9}
    assert "".join(token for token, _ in thesis.TOKENIZATION_TABLE) == "def calculate_sum(a, b"


def test_cosine_curves() -> None:
    assert len(thesis.COSINE_CURVES) == 12
    assert all(curve.epochs == tuple(range(13)) for curve in thesis.COSINE_CURVES)
    ends = {(c.matrix, c.objective, c.position): c.cosine[-1] for c in thesis.COSINE_CURVES}
    assert len(ends) == 12 and ends["input", "kl", "last"] > ends["input", "ce", "last"]
    over = [c for c in thesis.COSINE_CURVES if c.cosine[-1] > thesis.NUMBERS["cosine_bound"]]
    assert {(c.matrix, c.position) for c in over} == {("head", "first")}
    table = thesis.cosine_table()
    assert len(table) == 12 * 13 and table.loc[table["epoch"] == 12, "cosine"].tolist() == list(ends.values())


def test_both_objectives_start_from_the_same_rows() -> None:
    starts = {(c.matrix, c.position): c.cosine[0] for c in thesis.COSINE_CURVES if c.objective == "kl"}
    assert all(c.cosine[0] == starts[c.matrix, c.position] for c in thesis.COSINE_CURVES)


def test_sequential_losses_last_epoch_lowers_training_and_raises_validation() -> None:
    table = thesis.sequential_table()
    assert len(table) == 2 * 6 + 2 + 2 * 7 + 3 and table["loss"].between(0.35, 0.7).all()
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
    assert len(thesis.hyperparameter_table()) == 31
    assert set(thesis.hyperparameter_table("stage_a", "lora")["stage"]) == {"stage_a", "lora"}
    with pytest.raises(ValueError, match="phase9"):
        thesis.hyperparameter_table("phase9")


def test_the_thesis_is_cited_where_a_reader_begins() -> None:
    root = Path(__file__).parents[2]
    cited = thesis.CITATION
    for page in ("README.md", "CITATION.cff"):
        text = (root / page).read_text(encoding="utf-8")
        family = cited["author"].split(" ", 1)[1]
        for said in (family, cited["title"], cited["kind"], cited["university"], str(cited["year"]), cited["arxiv"]):
            assert said in text, f"{page}: {said}"
    start = json.loads((root / "notebooks" / "00_start.ipynb").read_text(encoding="utf-8"))["cells"]
    outputs = [output.get("data", {}) for cell in start for output in cell.get("outputs", [])]
    assert thesis.cite() in ["".join(output.get("text/markdown", "")) for output in outputs]
