"""Settings: names, types, ranges; profiles."""

import dataclasses

import pytest

from vocabx_utils import profiles
from vocabx_utils.config import StageConfig
from vocabx_utils.settings import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example(StageConfig):
    rate: float = 1e-3
    names: tuple[str, ...] = ("a",)
    limit: int | None = None


def test_parameters_become_settings_and_back():
    made = Example.from_params(rate=1, names=["x", "y"], limit=None, seed=3)
    assert made.names == ("x", "y")
    assert made.to_dict() | {"names": ["x", "y"], "seed": 3} == made.to_dict()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"rat": 1.0}, "unknown rat"),
        ({"rate": "1e-4"}, "rate is '1e-4' .*expected float"),
        ({"rate": True}, "expected float"),
        ({"seed": 1.5}, "expected int"),
        ({"seed": -1}, "0 or more"),
        ({"names": "abc"}, "a list of str"),
        ({"limit": "no"}, "int or None"),
        ({"dtype": "half"}, "one of 'auto'"),
        ({"run_name": "a/b"}, "plain folder name"),
    ],
)
def test_wrong_parameters_are_named(params, message):
    with pytest.raises(ConfigError, match=message):
        Example.from_params(**params)


def test_profile_sections_override_shared_values(tmp_path):
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
def test_bad_profiles_are_refused(tmp_path, content, message):
    path = tmp_path / "p.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        profiles.load_profile(path)


def test_unknown_profile_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"No profile 'gpus'. Known: quick"):
        profiles.load_profile("gpus")
    assert profiles.load_profile("quick") == {}
