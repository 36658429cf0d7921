"""What tests export, and an export in a process of its own (see `forked`) that is killed before it is verified."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tiny import chat_base, new_rows, with_words

from vocabx_utils.models import BaseModel
from vocabx_utils.training import export
from vocabx_utils.training.starts import Start, from_rows


def extension_of(base: BaseModel) -> Any:
    """Three new words behind the vocabulary of a base model."""
    return SimpleNamespace(extended=with_words(base.tokenizer), original=base.tokenizer, V=base.vocab_size, N=3)


def with_rows(base: BaseModel) -> Start:
    """A base model with random rows for them."""
    return from_rows(base, extension_of(base), *new_rows(base, 3))


def export_and_die(out: Path) -> None:
    """Write an export of the tiny model, and be killed where it would be read back."""
    export._verify = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    export.export_model(with_rows(chat_base()), out)
