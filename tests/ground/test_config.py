"""Settings: names, types, ranges."""

import dataclasses

import pytest

from vocabx_utils.config import FineTuneConfig, Phase1Config, StageConfig, TokenizerConfig
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
        ({"run_name": ".."}, "plain folder name"),
        ({"run_name": ""}, "plain folder name"),
    ],
)
def test_wrong_parameters_are_named(params, message):
    with pytest.raises(ConfigError, match=message):
        Example.from_params(**params)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_settings_refuse_numbers_that_are_not_finite(value):
    with pytest.raises(ConfigError, match="finite"):
        Phase1Config(learning_rate=value)
    with pytest.raises(ConfigError, match="finite"):
        FineTuneConfig(clip_norm=value)


def test_settings_of_phrases_leave_the_key_of_older_runs_as_it_was() -> None:
    usual, changed = TokenizerConfig().key(), TokenizerConfig(max_cut=0.1, strategy="phrases").key()
    assert not {"max_cut", "mix_words", "line_breaks", "max_phrase_bytes"} & usual.keys()
    assert changed == usual | {"max_cut": 0.1, "strategy": "phrases"}
    assert usual.keys() < TokenizerConfig().to_dict().keys()
    steps = {
        "average_last": 0.25,
        "rate_after": "constant",
        "ce_decay": True,
        "token_sampling": "equal",
        "head_fit": 3.0,
    }
    usual, changed = Phase1Config().key(), Phase1Config(**steps).key()
    assert not steps.keys() & usual.keys() and changed == usual | steps
