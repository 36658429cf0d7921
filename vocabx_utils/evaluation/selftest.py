"""Probe the sandbox before the first result: it must contain hostile programs, else nothing is executed."""

from __future__ import annotations

import functools

from vocabx_utils.evaluation import hostile
from vocabx_utils.evaluation.jail import INSTALL_HINT, JailView, SandboxUnavailableError
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Task

_LIMITS = Limits(timeout_s=10.0)


def check_sandbox(view: JailView) -> str:
    """Run two controls and eight hostile programs in the jail; a view is checked once per process.

    Args:
        view: What the jail shows of the host.

    Returns:
        Name and version of the backend, to be written into results.

    Raises:
        SandboxUnavailableError: There is no bubblewrap, or it does not hold; the message says what got out.
    """
    return _check(view.python, view.folders, tuple(view.data.items()), view.matplotlib)


def describe_sandbox(view: JailView) -> tuple[bool, str]:
    """Tell whether answers can be executed here, and by what, or why not and how to change that."""
    try:
        return True, f"{check_sandbox(view)} contains all hostile programs of the self-test"
    except SandboxUnavailableError as error:
        return False, str(error)


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
            verdict = sandbox.run(Task(code, hostile.TEST, "asserts"), _LIMITS)
            if verdict.status != wanted:
                problems.append(f"a {title} answer gets {verdict.status} ({verdict.details.get('ALL', '')})")
        for name in names:
            item = hostile.hostile(name)
            verdict = sandbox.run(item.task(targets), _LIMITS)
            problems += [f"{name} ({item.title}): {line}" for line in hostile.escapes(item, targets, verdict)]
    return problems
