"""The profiles that ship with the notebooks fit them: names, types and, where a stage has a class, ranges."""

from __future__ import annotations

import dataclasses

import pytest

from vocabx_utils import config
from vocabx_utils.cli.notebooks import find_notebooks
from vocabx_utils.cli.parameters import declared_parameters
from vocabx_utils.cli.run import make_plan
from vocabx_utils.paths import STAGES, notebooks_root

PROFILES = config.profile_names()
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
    first = (notebooks_root() / "profiles" / f"{profile}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# vocabx run --profile {profile}"


def test_the_three_profiles_of_the_design_are_there() -> None:
    assert PROFILES == ["quick", "gpu", "thesis"]
