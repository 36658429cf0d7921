"""Strict mode, trusted side: functions that ask the candidate's process and compare plain values here."""

from __future__ import annotations

import builtins
import socket
from collections.abc import Callable
from typing import Any

from . import literals, protocol

REPLY_LIMIT = 16 << 20  # bytes of one answer


class CandidateDiedError(Exception):
    """The candidate's process ended, or sent something that is no answer."""


class CandidateLoadError(Exception):
    """The solution could not be loaded; the text is the type and end of its traceback."""


def make_proxies(names: list[str], calls: socket.socket) -> dict[str, Callable[..., Any]]:
    """One function for each name, which calls its namesake in the candidate's process."""
    return {name: _proxy(name, calls) for name in names}


def _proxy(name: str, calls: socket.socket) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = (args, kwargs)
        request = {"name": name, "arguments": literals.encode(arguments)}
        try:
            protocol.send_message(calls, request)
            reply = protocol.receive_message(calls, REPLY_LIMIT)
        except (OSError, EOFError, ValueError) as error:
            raise CandidateDiedError(f"no answer to a call of {name} ({type(error).__name__})") from None
        value = _outcome(reply)
        if "arguments" in reply:
            literals.copy_into(arguments, literals.decode(str(reply["arguments"])))
        return value

    call.__name__ = name
    return call


def _outcome(reply: Any) -> Any:
    if not isinstance(reply, dict):
        raise CandidateDiedError("the answer is not an object")
    if "value" in reply:
        return literals.decode(str(reply["value"]))
    if "load_error" in reply:
        raise CandidateLoadError(str(reply["load_error"])[:600])
    kind = getattr(builtins, str(reply.get("raised")), None)
    # Only ordinary exceptions: a SystemExit of the candidate must not end the trusted process.
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    raise kind(str(reply.get("text"))[:400])
