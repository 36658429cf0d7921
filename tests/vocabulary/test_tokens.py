"""The files of an extension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.tokens import load_extension


def test_a_folder_without_extension(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokens\.json is missing"):
        load_extension(tmp_path)


def test_files_that_do_not_belong_together(smollm_like: Any, tmp_path: Path) -> None:
    add_tokens(smollm_like, [" groupby"]).save(tmp_path / "a")
    add_tokens(smollm_like, ["frobnicator"]).save(tmp_path / "b")
    (tmp_path / "a" / "tokens.json").write_bytes((tmp_path / "b" / "tokens.json").read_bytes())
    with pytest.raises(TokenizerError, match="hold different new tokens"):
        load_extension(tmp_path / "a")
