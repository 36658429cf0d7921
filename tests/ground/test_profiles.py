"""The profiles that ship with the notebooks fit them: names, types and, where a stage has a class, ranges."""

from __future__ import annotations

import dataclasses

import pytest

from vocabx_utils import config, profiles, thesis
from vocabx_utils.cli.notebooks import find_notebooks
from vocabx_utils.cli.parameters import declared_parameters
from vocabx_utils.cli.run import make_plan
from vocabx_utils.paths import STAGES
from vocabx_utils.training.finetuning_variants import plan_variants

PROFILES = profiles.profile_names()
CLASSES = dict(
    zip(
        STAGES,
        (
            config.StageConfig,
            config.TokenizerConfig,
            config.AlignmentConfig,
            config.Phase1Config,
            config.FineTuneConfig,
            config.EvaluationConfig,
            config.AnalysisConfig,
        ),
        strict=True,
    )
)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_name_and_type_fits(profile: str) -> None:
    plan = make_plan(profile)
    assert plan.run_name == profile
    assert set(plan.sources) == set(find_notebooks())


@pytest.mark.parametrize("profile", PROFILES)
def test_every_value_is_in_range(profile: str) -> None:
    plan = make_plan(profile)
    for stage, source in plan.sources.items():
        values = {n: p.default for n, p in declared_parameters(source).items()} | plan.parameters[stage]
        fields = {field.name for field in dataclasses.fields(CLASSES[stage])}
        settings = CLASSES[stage].from_params(**{n: v for n, v in values.items() if n in fields})
        assert settings.run_name == profile


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "quick"])
def test_each_begins_with_the_command_that_launches_it(profile: str) -> None:
    first = (profiles.PROFILES / f"{profile}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# vocabx run --profile {profile}"


def test_the_three_profiles_of_the_design_are_there() -> None:
    assert PROFILES == ["quick", "gpu", "thesis"]


@pytest.mark.parametrize("profile", ["gpu", "thesis"])
def test_lora_warms_up_over_its_first_epoch_as_in_the_thesis(profile: str) -> None:
    values = make_plan(profile).parameters["04_fine_tuning"]
    assert values["b_warmup"] * values["b_epochs"] == 1


def test_the_thesis_profile_tunes_its_five_variants_and_three_sequential_ones() -> None:
    values = make_plan("thesis").parameters["04_fine_tuning"]
    settings = config.FineTuneConfig.from_params(variants=values["variants"], without_a=[], full=values["full"])
    plans = {plan.name: (plan.start, plan.stages) for plan in plan_variants(settings)}
    five = ("random_untrained", "random_ce", "mean_ce", "random_kl_first", "mean_kl_first")
    assert set(five) <= set(make_plan("thesis").parameters["03_phase1_training"]["variants"])
    assert {name: plans.pop(name) for name in five} == {name: (f"phase1:{name}", ("a", "b")) for name in five}
    assert plans == {
        "base": ("base", ("b",)),
        "base_full": ("base", ("c",)),
        "mean_ce_full": ("mean_ce:a", ("c",)),
        "mean_kl_first_full": ("mean_kl_first:a", ("c",)),
    }


def test_the_thesis_profile_evaluates_every_row_of_the_published_table() -> None:
    """Nine rows: the base, five variants and three sequential ones, and beside them the base with LoRA alone."""
    parameters = make_plan("thesis").parameters
    ending = {"none": "", "lora": "", "full": "_full"}
    rows = [f"{row.variant}{ending[row.recipe]}" for row in thesis.RESULTS if row.recipe != "none"]
    exported = parameters["04_fine_tuning"]["exported"]
    assert sorted(exported) == sorted(["base", *rows])
    for name in ("variants", "answer_variants"):
        assert sorted(parameters["05_benchmark_evaluation"][name]) == sorted(
            ["base", *(f"tuned_{n}" for n in exported)]
        )
