"""Probe the sandbox before the first result: it must contain hostile programs, else nothing is executed."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from vocabx_utils.evaluation import hostile, memory_group
from vocabx_utils.evaluation.environments import EnvironmentMissingError, environment_for
from vocabx_utils.evaluation.jail import INSTALL_HINT, JailView, SandboxUnavailableError
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Task

_LIMITS = Limits(timeout_s=10.0)
_SMALL = Limits(timeout_s=20.0, memory_mb=256, tmp_mb=16)


def protections(view: JailView) -> list[tuple[str, bool, str]]:
    """Try which further protections are active on this machine, each by a program that attacks it.

    For each: what it protects from, whether the program was stopped here, and by what, or what would be needed. Beside
    them stand the namespaces, without which a `SandboxUnavailableError` says that nothing is executed at all.
    """
    check_sandbox(view)
    with Sandbox(view) as sandbox:
        tried = {
            name: sandbox.run(Task(code, hostile.TEST, "asserts"), _SMALL) for name, code in hostile.PROBES.items()
        }

    def protection(probe: str, name: str, how: str, needed: str) -> tuple[str, bool, str]:
        active = tried[probe].reason == "memory" if probe == "memory" else tried[probe].status == "pass"
        return name, active, how if active else f"needed: {needed}"

    return [
        protection(
            "memory",
            "limit on the memory of all processes and files of a program together",
            memory_group.describe(),
            "root, a delegated cgroup v2, or systemd for this user; so far each process has a limit of its own only",
        ),
        protection("namespaces", "no further user namespaces", "refused", "bubblewrap 0.8, or the next line"),
        protection(
            "calls",
            "filter for system calls: SysV and hidden memory, keyrings, mounts, tracing, vsock",
            "seccomp",
            "a kernel with seccomp, on x86-64 or ARM64",
        ),
        protection("processes", "limit on processes and threads", f"{_SMALL.processes}", "a kernel that counts them"),
    ]


def check_sandbox(view: JailView) -> str:
    """Run two controls and eight hostile programs in the jail; a view is checked once per process.

    Returns name and version of the backend, for results; a `SandboxUnavailableError` says what is missing or got out.
    """
    return _check(view.python, view.folders, tuple(view.data.items()), view.matplotlib)


def describe_sandbox(view: JailView) -> tuple[bool, str]:
    """Tell whether answers can be executed here, and by what, or why not and how to change that."""
    try:
        return True, f"{check_sandbox(view)} contains all hostile programs of the self-test"
    except SandboxUnavailableError as error:
        return False, str(error)


def describe_benchmarks(names: Iterable[str]) -> tuple[bool, str]:
    """Tell whether answers to all these benchmarks can be executed here, or what is missing, such as an environment."""
    try:
        states = [describe_sandbox(environment_for(name).view) for name in names]
    except EnvironmentMissingError as error:
        return False, str(error)
    return all(ready for ready, _ in states), "; ".join(sorted({text for _, text in states}))


@functools.lru_cache(maxsize=16)
def _check(*parts: object) -> str:
    python, folders, data, matplotlib = parts
    view = JailView(python, folders, dict(data), matplotlib)  # type: ignore[arg-type, call-overload]
    problems = probe(view)
    with Sandbox(view) as sandbox:
        name = sandbox.bubblewrap.name
    if problems:
        raise SandboxUnavailableError(
            f"the sandbox ({name}) failed its self-test, so nothing is executed: {'; '.join(problems)}. {INSTALL_HINT}"
        )
    return name


def probe(view: JailView, names: tuple[str, ...] = hostile.SELF_TEST) -> list[str]:
    """Run controls and hostile programs; return one line for each that went wrong."""
    problems = []
    with Sandbox(view) as sandbox, hostile.targets() as targets:
        for title, code, wanted in (("right", hostile.GOOD, "pass"), ("wrong", hostile.WRONG, "fail")):
            outcome = sandbox.run(Task(code, hostile.TEST, "asserts"), _LIMITS)
            if outcome.status != wanted:
                problems.append(f"a {title} answer gets {outcome.status} ({outcome.details.get('ALL', '')})")
        for name in names:
            item = hostile.hostile(name)
            outcome = sandbox.run(item.task(targets), _LIMITS)
            problems += [f"{name} ({item.title}): {line}" for line in hostile.escapes(item, targets, outcome)]
    return problems
