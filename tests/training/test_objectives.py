"""Names of objectives, as they stand in folder names."""

from __future__ import annotations

import pytest

from vocabx_utils.training.objectives import Objective, parse_objective


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("ce", Objective(None, ce_weight=1.0)),
        ("kl_last", Objective("kl", "last")),
        ("kl_first_t2", Objective("kl", "first", temperature=2.0)),
        ("kl_last_ce0.3", Objective("kl", "last", ce_weight=0.3)),
        ("kl_none_ce1e-2_t1.5_w4", Objective("kl", "none", 0.01, 1.5, new_target_weight=4.0)),
        ("hidden_last_l12", Objective("hidden", "last", layer=12)),
        ("cosine_first", Objective("cosine", "first")),
        ("kl_last_end4", Objective("kl", "last", end_weight=4.0)),
        ("kl_last_end4x2", Objective("kl", "last", end_weight=4.0, after=2)),
        ("kl_last_ce0.03_end8x2_t2", Objective("kl", "last", 0.03, 2.0, end_weight=8.0, after=2)),
        ("kl_last_ce0.03_hidden0.5_end4", Objective("kl", "last", 0.03, end_weight=4.0, hidden_weight=0.5)),
        ("kl_last_endonly", Objective("kl", "last", end_only=True)),
        ("hidden_last_endonlyx3_l4", Objective("hidden", "last", layer=4, after=3, end_only=True)),
        ("ce_w3", Objective(None, ce_weight=1.0, new_target_weight=3.0)),
    ],
)
def test_names(name: str, objective: Objective) -> None:
    assert parse_objective(name) == objective


@pytest.mark.parametrize(
    "name",
    [
        "",
        "kl",
        "kl_middle",
        "kl_last_ce",
        "mse_last",
        "hidden_last_t2",
        "ce0.5",
        "kl_last_",
        "kl_last_end",
        "kl_last_endx2",
        "kl_last_end4x",
        "kl_last_end0",
        "ce_end4",
        "kl_none_end4",
        "kl_first_endonly",
        "kl_last_end4_ce0.3",
        "kl_last_hidden",
        "kl_last_hidden0.5_ce0.3",
        "hidden_last_hidden0.5",
        "ce_hidden0.5",
    ],
)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError):
        parse_objective(name)


@pytest.mark.parametrize("name", ["kl_last_l2", "ce_l2", "kl_none_ce0.3_l1"])
def test_a_layer_that_the_objective_would_not_read_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a layer belongs to a distance of hidden states"):
        parse_objective(name)
