"""The profiles that ship with the notebooks fit them: names, types and, where a stage has a class, ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from vocabx_utils import config, profiles, thesis
from vocabx_utils.cli.notebooks import find_notebooks
from vocabx_utils.cli.parameters import declared_parameters
from vocabx_utils.cli.run import make_plan
from vocabx_utils.settings import ConfigError
from vocabx_utils.training.tuning_plans import plan_variants

PROFILES = profiles.profile_names()


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
        kind = config.STAGE_SETTINGS[stage][0]
        settings = kind.from_params(**{n: v for n, v in values.items() if n in kind.field_names()})
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


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_trains_the_four_methods_of_the_thesis_and_its_fifth_model(profile: str) -> None:
    plan, stage = make_plan(profile), "03_phase1_training"
    values = {name: held.default for name, held in declared_parameters(plan.sources[stage]).items()}
    methods = {f"{start}_{objective}" for start in ("random", "mean") for objective in ("ce", "kl_first")}
    assert {*methods, "random_untrained"} <= set((values | plan.parameters[stage])["variants"])


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


def test_profile_sections_override_shared_values(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text('seed: 1\nother: 2\n"03":\n  seed: 5\n  epochs: 3\n')
    profile = profiles.load_profile(path)
    assert profile["03_phase1_training"] == {"seed": 5, "epochs": 3}
    declared = {"seed": 0, "epochs": 1}
    assert profiles.notebook_params(profile, "03_phase1_training", declared) == {"seed": 5, "epochs": 3}
    assert profiles.notebook_params(profile, "01_tokenizer_extension", {"seed": 0}) == {"seed": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [("- 1\n- 2\n", "expected a mapping"), ("a: [1\n", "is not YAML"), ("phase9:\n  a: 1\n", "names no notebook")],
)
def test_bad_profiles_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        profiles.load_profile(path)


def test_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"No profile 'gpus'. Known: quick"):
        profiles.load_profile("gpus")
    assert profiles.load_profile("quick") == {}
