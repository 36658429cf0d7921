"""Parameters of a notebook: read from its source, checked, and assigned from profiles and the command line.

papermill injects whatever it is given: a misspelt name or a value of the wrong type runs to the end with the
defaults. So everything is checked here, for all notebooks at once, before the first of them starts.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocabx_utils.paths import stage_name
from vocabx_utils.profiles import notebook_params
from vocabx_utils.settings import ConfigError, fits, is_finite, spell, type_of

TAG = "parameters"


@dataclass(frozen=True)
class Parameter:
    """One line of a parameter cell: the variable that the notebook reads, and its literal value."""

    name: str
    default: Any

    def check(self, value: Any, text: str | None = None) -> Any:
        """Return a value, which `text` may have spelt, if it fits the type of the default and is finite.

        An int is a fine float. Else a ConfigError says what was given.
        """
        if not fits(value, type_of(self.default)):
            raise self.misfit(value if text is None else text)
        if not is_finite(value):
            raise ConfigError(f"{self.name} is {value!r}; expected a finite number.")
        return float(value) if isinstance(self.default, float) else value

    def misfit(self, given: Any) -> ConfigError:
        """Return the error about something that does not fit the type of the default."""
        return ConfigError(
            f"{self.name} is {given!r} ({type(given).__name__}); expected {spell(type_of(self.default))}, "
            f"such as the default {self.default!r}."
        )


def declared_parameters(notebook: Path) -> dict[str, Parameter]:
    """Read the cell tagged `parameters` of a notebook; empty if it has none.

    Raises:
        ConfigError: the file is no notebook, has several such cells, or the cell holds anything but
            `name = literal` lines (papermill overlooks annotated lines, and derived values stay stale).
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{notebook} is not a readable notebook ({error}).") from error
    tagged = [c for c in cells if TAG in c.get("metadata", {}).get("tags", [])]
    if len(tagged) > 1:
        raise ConfigError(f"{notebook.name} has {len(tagged)} cells tagged {TAG!r}; expected one.")
    lines = ast.parse("".join(tagged[0]["source"])).body if tagged else []
    return {parameter.name: parameter for parameter in (_read_statement(line, notebook.name) for line in lines)}


def _read_statement(statement: ast.stmt, where: str) -> Parameter:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            try:
                return Parameter(name, ast.literal_eval(value))
            except ValueError:
                pass
    raise ConfigError(
        f"{where}, parameter cell: `{ast.unparse(statement)}` is not a plain `name = literal` line; "
        "derived values and annotations belong in the next cell."
    )


_WORDS = {"true": True, "false": False, "none": None, "null": None}
_ITEM = re.compile(r"""\s*("[^"]*"|'[^']*'|[^,"']*)\s*(?:,|$)""")


def parse_text(parameter: Parameter, text: str) -> Any:
    """Read a typed value as the type of the parameter's default; what is typed is what arrives.

    Text is taken as it stands, numbers are decimal (`0123` is 123, `1e-4` a float), `true` and `false` are the
    booleans. Lists are typed as `[a, b]` or `a,b`; items that hold a comma are put in quotes. Where the default is
    None, the text is read as the first of none, boolean, whole number, number and text that it spells.

    Raises:
        ConfigError: the text does not spell a value of that type.
    """
    if isinstance(parameter.default, str):
        return text
    if isinstance(parameter.default, list | tuple):
        return _read_value(parameter, _split_items(parameter, text))
    return parameter.check(_plain_value(text, whole=not isinstance(parameter.default, float)), text)


def _plain_value(text: str, *, whole: bool) -> Any:
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    for kind in (int, float) if whole else (float,):
        with contextlib.suppress(ValueError):
            return kind(word)
    return text


def _split_items(parameter: Parameter, text: str) -> list[str]:
    inner = text.strip()
    if inner.startswith("[") != inner.endswith("]"):
        raise parameter.misfit(text)
    inner = inner[1:-1].strip() if inner.startswith("[") else inner
    items, place = [], 0
    while place < len(inner):
        found = _ITEM.match(inner, place)
        if found is None:
            raise parameter.misfit(text)
        item = found[1].strip()
        items.append(item[1:-1] if item[:1] in ("'", '"') else item)
        place = found.end()
    return items


def _read_value(parameter: Parameter, value: Any) -> Any:
    """Read a value of a profile: text as by `parse_text`, lists by their items, everything else as it is."""
    if isinstance(value, str) and not isinstance(parameter.default, list | tuple):
        return parse_text(parameter, value)
    if isinstance(value, list) and isinstance(parameter.default, list | tuple):
        kind = Parameter(parameter.name, parameter.default[0] if parameter.default else "")
        return [_read_value(kind, item) for item in value]
    return parameter.check(value)


def assign_parameters(
    declared: Mapping[str, Mapping[str, Parameter]],
    profile: Mapping[str, Any],
    typed: Iterable[tuple[str, str]] = (),
    selected: Iterable[str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Give each selected notebook its values: typed ones over its profile section over the shared ones.

    The profile is best read as text: the types of the defaults say how it reads. `epochs`, typed, goes to every
    selected notebook that declares it, `03.epochs` to that one. Unknown names and values of the wrong type stand in one
    ConfigError. Notebooks without values have an empty mapping.
    """
    chosen = list(declared if selected is None else selected)
    problems = _unknown_names(declared, profile)
    values: dict[str, dict[str, Any]] = {stage: {} for stage in chosen}
    for stage in declared:
        for name, value in notebook_params(profile, stage, declared[stage]).items():
            if name in declared[stage]:
                with noting(problems, f"profile, {stage}: "):
                    values.get(stage, {})[name] = _read_value(declared[stage][name], value)
    for spelled, text in typed:
        aimed, name = _aim(spelled, chosen)
        takers = [stage for stage in aimed if name in declared[stage]]
        if not takers:
            problems.append(_explain_unknown(name, {n for stage in aimed for n in declared[stage]}, aimed))
        for stage in takers:
            with noting(problems, f"-p, {stage}: "):
                values[stage][name] = parse_text(declared[stage][name], text)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return values


def _aim(spelled: str, chosen: list[str]) -> tuple[list[str], str]:
    """Notebooks and parameter name that `epochs` or `03.epochs` means."""
    section, dot, name = spelled.rpartition(".")
    if not dot:
        return chosen, spelled
    try:
        stage = stage_name(section)
    except ValueError as error:
        raise ConfigError(f"-p {spelled}: {error}") from None
    if stage not in chosen:
        raise ConfigError(f"-p {spelled}: {stage} is not among the notebooks to run ({', '.join(chosen)}).")
    return [stage], name


@contextlib.contextmanager
def noting(problems: list[str], where: str) -> Iterator[None]:
    """Add the text of a ConfigError in the block to the problems, behind words that say where it was."""
    try:
        yield
    except ConfigError as error:
        problems.append(f"{where}{error}")


def _unknown_names(declared: Mapping[str, Mapping[str, Parameter]], profile: Mapping[str, Any]) -> list[str]:
    everywhere = {name for parameters in declared.values() for name in parameters}
    problems = []
    for key, value in profile.items():
        if not isinstance(value, Mapping):
            if key not in everywhere:
                problems.append(_explain_unknown(key, everywhere, list(declared)))
        elif key not in declared:
            problems.append(f"profile: section {key!r} names no notebook that is here.")
        else:
            problems += [_explain_unknown(n, declared[key], [key]) for n in value if n not in declared[key]]
    return problems


def _explain_unknown(name: str, known: Iterable[str], notebooks: list[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    advice = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known) or 'none'}."
    return f"No parameter {name!r} in {', '.join(notebooks)}. {advice}"
