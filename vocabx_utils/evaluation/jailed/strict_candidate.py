"""Strict mode, candidate's side: load the solution and answer calls with plain values. Nothing here is trusted."""

from __future__ import annotations

import os
import socket
from typing import Any

from . import literals, protocol, verdict_runner


def serve_calls(job_fd: int, calls_fd: int) -> None:
    """Take a job (``solution``, ``limits``) and answer calls on ``calls_fd`` until it is closed."""
    job, confirm = protocol.accept_job(job_fd)
    protocol.silence()
    protocol.enter_work_folder()
    protocol.apply_limits(job["limits"])
    calls = socket.socket(fileno=calls_fd)
    confirm()
    namespace = verdict_runner.new_module({"style": "asserts"})
    load_error = _load(job["solution"], namespace)
    try:
        while True:
            request = protocol.receive_message(calls)
            reply = {"load_error": load_error} if load_error else _answer(request, namespace)
            protocol.send_message(calls, reply)
    except (OSError, EOFError, ValueError):
        os._exit(0)


def _load(solution: str, namespace: dict[str, Any]) -> str | None:
    try:
        verdict_runner.run_source(solution, "solution.py", namespace)
    except BaseException as error:
        return ": ".join(verdict_runner.describe(error))
    return None


def _answer(request: dict[str, Any], namespace: dict[str, Any]) -> dict[str, str]:
    try:
        arguments = literals.decode(request["arguments"])
        if request["name"] not in namespace:
            raise NameError(f"name {request['name']!r} is not defined")
        args, kwargs = arguments
        answer = {"value": literals.encode(namespace[request["name"]](*args, **kwargs))}
        return answer | _changed(arguments, request["arguments"])
    except BaseException as error:
        kind, text = verdict_runner.describe(error)
        return {"raised": kind, "text": text}


def _changed(arguments: Any, before: str) -> dict[str, str]:
    """The arguments after the call, if it changed them in place and they are still plain."""
    try:
        after = literals.encode(arguments)
    except literals.NotPlainError:
        return {}
    return {} if after == before else {"arguments": after}
