"""Profiles: YAML files of notebook parameters.

Keys that name a notebook hold that notebook's parameters, every other key is shared by all notebooks that declare it.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vocabx_utils.config import StageConfig
from vocabx_utils.paths import STAGES, stage_name
from vocabx_utils.settings import ConfigError


class _PlainLoader(yaml.SafeLoader):
    """YAML 1.2's core schema: `no` and `1:30` are words, `1e-4` is a number and `0123` is 123."""


def _decimal(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))  # YAML 1.1 reads 010 as 8


_PLAIN = {
    "bool": r"true|True|TRUE|false|False|FALSE",
    "null": r"null|Null|NULL|~|",
    "decimal": r"[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
}
_PlainLoader.yaml_implicit_resolvers = {}
for _tag, _pattern in _PLAIN.items():
    _PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), None)
_PlainLoader.add_constructor("tag:yaml.org,2002:decimal", _decimal)


PROFILES = Path(__file__).with_name("profiles")


def profile_names() -> list[str]:
    """Return the names of the profiles that ship with the package; `quick` means the notebooks' own defaults."""
    return ["quick", *sorted(p.stem for p in PROFILES.glob("*.yaml"))]


def load_profile(name_or_path: str | Path = "quick", *, as_text: bool = False) -> dict[str, Any]:
    """Read a profile: `quick` (empty: the notebooks' own defaults), the name of a shipped one, or a YAML file.

    Numbers, `true`, `false` and `null` are recognised as in YAML 1.2; `as_text` leaves every value the text that
    stands there, for readers who know the types of the parameters. Shared parameters are found by name, and mappings
    under full notebook names such as `03_phase1_training`. ConfigError where there is no such profile, it is not a
    mapping, or a section names no notebook.
    """
    if str(name_or_path) == "quick":
        return {}
    path = Path(name_or_path).expanduser()
    if path.suffix not in {".yaml", ".yml"}:
        path = PROFILES / f"{name_or_path}.yaml"
    if not path.is_file():
        raise ConfigError(f"No profile {str(name_or_path)!r}. Known: {', '.join(profile_names())}, or a YAML file.")
    return name_sections(read_mapping(path, as_text=as_text), path)


def read_mapping(path: Path, *, as_text: bool = False) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; ConfigError where it holds something else. See `load_profile`."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader if as_text else _PlainLoader) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}; expected a mapping of parameter names to values.")
    return {str(key): value for key, value in content.items()}


def name_sections(parameters: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Spell the sections among parameters by the full names of their notebooks; ConfigError for one that names none."""
    return {_section_name(str(key), value, path): value for key, value in parameters.items()}


def check_shared(profile: Mapping[str, Any], source: str | Path) -> None:
    """Refuse shared parameters of a profile that are no setting of any stage, such as misspelt ones.

    `vocabx run` checks all parameters against the notebooks; commands that read a profile without them call this. The
    ConfigError names the parameter and the closest known one.
    """
    known = {field.name for stage in StageConfig.__subclasses__() for field in dataclasses.fields(stage)}
    for name, value in profile.items():
        if not isinstance(value, Mapping) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"{source}: {name!r} is no setting of any stage.{hint} What belongs to one notebook alone stands in a "
                "section of its name."
            )


def _section_name(key: str, value: object, path: Path) -> str:
    if not isinstance(value, Mapping):
        return key
    try:
        return stage_name(key)
    except ValueError:
        raise ConfigError(f"{path}: section {key!r} names no notebook. Known: {', '.join(STAGES)}.") from None


def notebook_params(profile: Mapping[str, Any], stage: str, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Pick from a profile what one notebook takes: its own section over the shared values that it declares."""
    shared = {k: v for k, v in profile.items() if not isinstance(v, Mapping) and k in declared}
    return shared | dict(profile.get(stage, {}))
