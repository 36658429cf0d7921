"""The mean of what a training moves, over its last steps: it lies where single steps only swing around.

Polyak and Juditsky 1992; for networks Izmailov et al. 2018 (stochastic weight averaging).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Average:
    """The mean of some parameters over the steps of a training from the number `first` on, counted from 1."""

    def __init__(self, parameters: Mapping[str, Tensor], first: int) -> None:
        self.parameters, self.first, self.count = parameters, first, 0
        self.means = {name: torch.zeros_like(value) for name, value in parameters.items()}

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Take the parameters in as they are after a step."""
        if step < self.first:
            return
        self.count += 1
        for name, value in self.parameters.items():
            self.means[name] += (value - self.means[name]) / self.count

    @torch.no_grad()
    def settle(self) -> None:
        """Put the mean in the place of the parameters."""
        if self.count:
            for name, value in self.parameters.items():
                value.copy_(self.means[name])

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint has to keep."""
        means = {f"average_{name}": value.cpu() for name, value in self.means.items()}
        return means | {"averaged": torch.tensor(self.count)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave."""
        self.count = int(state["averaged"])
        for name, value in self.means.items():
            value.copy_(state[f"average_{name}"])
