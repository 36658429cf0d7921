"""Shared parts of the sandbox tests: skip without bubblewrap, small problems that need no data."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vocabx_utils.evaluation.benchmarks import Problem, _mbpp
from vocabx_utils.evaluation.environments import (
    Environment,
    EnvironmentMissingError,
    load_environment,
    plain_environment,
)
from vocabx_utils.evaluation.jail import SandboxUnavailableError, find_bubblewrap


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sandbox: executes programs in bubblewrap; skipped without it")
    config.addinivalue_line("markers", "pinned(name): needs a pinned evaluation environment; skipped without it")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("sandbox"):
        try:
            find_bubblewrap()
        except SandboxUnavailableError as error:
            pytest.skip(str(error))
    if pinned := item.get_closest_marker("pinned"):
        try:
            load_environment(pinned.args[0])
        except EnvironmentMissingError as error:
            pytest.skip(str(error))


@pytest.fixture(scope="session")
def plain() -> Environment:
    return plain_environment()


@pytest.fixture
def make_problem() -> Callable[..., Problem]:
    """Problems in the form of MBPP: add a number, checked by two asserts."""

    def make(number: int) -> Problem:
        tests = [f"assert add_{number}(1) == {1 + number}", f"assert add_{number}(-{number}) == 0"]
        code = f"def add_{number}(x):\n    return x + {number}\n"
        row = {"task_id": number, "text": f"Add {number}.", "code": code}
        return _mbpp({**row, "test_list": tests, "test_setup_code": ""})

    return make
