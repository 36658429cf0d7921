"""What a person types is what arrives, by the type of the parameter; every stage's settings are built in the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vocabx_utils import config, profiles, settings
from vocabx_utils.cli import main
from vocabx_utils.cli.notebooks import find_notebooks
from vocabx_utils.cli.parameters import Parameter, declared_parameters, parse_text
from vocabx_utils.cli.run import make_plan


@pytest.mark.parametrize(
    ("default", "text", "value"),
    [
        *(("a", text, text) for text in ("no", "null", "~", "0123", "1e-4", "1:30", "2024-01-01", "true", " x ", "")),
        *((["a"], text, text.split(",")) for text in ("no,yes", "1e-4,0123", "1:30", "~,null", "2024-01-01")),
        (["a"], "[a, b]", ["a", "b"]),
        (["a"], "['a, b', \"c\"]", ["a, b", "c"]),
        (["a"], "", []),
        (["a"], "[]", []),
        ([4], "0123, 16", [123, 16]),
        ([0.5], "1e-4,2", [1e-4, 2.0]),
        (1, "0123", 123),
        (1, "-3", -3),
        (0.1, "1e-4", 1e-4),
        (0.1, "010", 10.0),
        (False, "true", True),
        (True, "False", False),
        (None, "none", None),
        (None, "7", 7),
        (None, "1e-4", 1e-4),
        (None, "no", "no"),
        (None, "1:30", "1:30"),
        (None, "true", True),
    ],
)
def test_text_is_read_as_the_type_of_the_default(default: Any, text: str, value: Any) -> None:
    found = parse_text(Parameter("p", default), text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("default", "text", "expected"),
    [
        (1, "1:30", "expected int"),
        (1, "1e4", "expected int"),
        (1, "0x10", "expected int"),
        (1, "", "expected int"),
        (0.1, "1:30", "expected float"),
        (0.1, "inf", "a finite number"),
        (0.1, "nan", "a finite number"),
        (None, "inf", "a finite number"),
        ([0.1], "1,inf", "a finite number"),
        (False, "no", "expected bool"),
        (False, "1", "expected bool"),
        ([1], "1,no", "expected int"),
        (["a"], "[a, b", "expected a list of str"),
        (["a"], "'a, b", "expected a list of str"),
    ],
)
def test_other_text_is_refused(default: Any, text: str, expected: str) -> None:
    with pytest.raises(settings.ConfigError, match=expected):
        parse_text(Parameter("p", default), text)


def test_a_profile_is_read_by_the_same_types(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "01:\n  corpus_revision: 0123456\n  corpus_path: no\n  corpus_source: hub\n  n_tokens: 010\n"
        "03:\n  learning_rate: 1e-4\n  require_improvement: true\n  variants: [mean_ce, mean_kl_last_ce0.1]\n"
        "05:\n  variants: [base, mean_ce]\n  answer_variants: [base]\n"
    )
    plan = make_plan(str(path))
    first, third = plan.parameters["01_tokenizer_extension"], plan.parameters["03_phase1_training"]
    assert (first["corpus_revision"], first["corpus_path"], first["n_tokens"]) == ("0123456", "no", 10)
    assert (third["learning_rate"], third["require_improvement"]) == (1e-4, True)
    native = profiles.load_profile(path)
    assert native["01_tokenizer_extension"]["n_tokens"] == 10
    assert native["01_tokenizer_extension"]["corpus_path"] == "no"
    assert native["03_phase1_training"]["learning_rate"] == 1e-4


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-p", "05.workers", "0"], ["05_benchmark_evaluation", "workers is 0", "1 or more"]),
        (["-p", "04.b_epochs", "0"], ["04_fine_tuning", "b_epochs is 0", "1 or more"]),
        (["-p", "04.measured_texts", "0"], ["04_fine_tuning", "measured_texts is 0", "1 or more"]),
        (["-p", "03.learning_rate", "inf"], ["03_phase1_training", "learning_rate is inf", "finite"]),
        (["-p", "05.power", "nan"], ["05_benchmark_evaluation", "power is nan", "finite"]),
        (["-p", "06.kept", "4,-1"], ["06_mechanistic_analysis", "kept", "0 or more"]),
        (["-p", "dtype", "float8"], ["00_start", "dtype is 'float8'", "bfloat16"]),
        (["-p", "01.corpus_source", "jsonl"], ["01_tokenizer_extension", "corpus_path"]),
        (["-p", "03.variants", "mean_kl_lst"], ["03_phase1_training", "kl_lst"]),
        (["-p", "03.variants", "mean_ce"], ["04_fine_tuning", "mean_kl_last", "03_phase1_training: mean_ce"]),
        (["-p", "04.exported", "mean_kl_lst"], ["04_fine_tuning", "exported", "mean_kl_lst"]),
        (["-p", "05.variants", "base,tuned_x", "-p", "05.answer_variants", ""], ["05_", "names x;", "exported"]),
        (["-p", "05.workers", "0", "-p", "04.b_rate", "0"], ["workers is 0", "b_rate is 0.0"]),
    ],
)
def test_values_that_would_stop_a_later_notebook_are_refused_first(
    words: list[str], named: list[str], tmp_path: Path
) -> None:
    result = CliRunner().invoke(main, ["run", *words])
    assert result.exit_code == 1
    assert [part for part in named if part not in result.output] == []
    assert not (tmp_path / "runs").exists()


def test_every_parameter_of_the_series_is_a_setting() -> None:
    shown_only = {"00_start": {"sentence"}}
    for stage, path in find_notebooks().items():
        known = set().union(*(settings.field_names() for settings in config.STAGE_SETTINGS[stage]))
        assert set(declared_parameters(path)) - known == shown_only.get(stage, set()), stage
