"""Open a notebook: its settings from its parameters, its run folder, its seed and the look of its figures."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from vocabx_utils.config import StageConfig
from vocabx_utils.figures.theme import theme
from vocabx_utils.runs import Run, open_run

Config = TypeVar("Config", bound=StageConfig)


def open_notebook(settings: type[Config], parameters: Mapping[str, Any]) -> tuple[Config, Run]:
    """Build a stage's settings from the parameters of its notebook, seed torch, set the theme and open the run.

    Args:
        parameters: names and values, usually `globals()` of the notebook; names that are no setting are left out.

    Returns:
        The settings, which are also shown folded, and the run that they name.

    Raises:
        ConfigError: a value has a wrong type or is out of range.
    """
    import torch
    from IPython.display import display

    config = settings.from_params(**{name: parameters[name] for name in settings.field_names() & parameters.keys()})
    torch.manual_seed(config.seed)
    theme()
    display(Folded("Settings of this run", config.to_dict()))
    return config, open_run(config.run_name)


@dataclass(frozen=True)
class Folded:
    """Names and values behind a line that opens on a click; plain text where a page cannot fold."""

    title: str
    values: Mapping[str, Any]

    def __repr__(self) -> str:
        width = max(map(len, self.values), default=0)
        return "\n".join([f"{self.title}:", *(f"{name:{width}}  {value}" for name, value in self.values.items())])

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left">{html.escape(name)}</th>'
            f'<td style="text-align:left">{html.escape(str(value))}</td></tr>'
            for name, value in self.values.items()
        )
        return f"<details><summary>{html.escape(self.title)}</summary><table>{rows}</table></details>"
