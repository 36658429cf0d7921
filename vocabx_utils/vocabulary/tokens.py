"""An extension: an original tokenizer, the extended one and the table of the tokens that are new, kept together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedTokenizerFast

from vocabx_utils.files import read_json, write_json
from vocabx_utils.portable import save_tokenizer
from vocabx_utils.rows import NewToken, parse_token
from vocabx_utils.texts import TokenizerError
from vocabx_utils.tokenizer_files import read_tokenizer
from vocabx_utils.vocabulary.encoding import encode_each
from vocabx_utils.vocabulary.options import Strategy
from vocabx_utils.vocabulary.spelling import spelling_of


@dataclass(frozen=True)
class Proposal:
    """A token that `select_tokens` proposes."""

    text: str  # its text (the replacement character where the bytes are no whole characters)
    raw: bytes  # its UTF-8 bytes
    count: int  # occurrences in the corpus, after all other proposals took theirs
    subtokens: tuple[int, ...]  # original ids that it replaces
    rank: int  # place in the order of selection
    # the two pieces that make it; merges stand in the order of their ranks (not for added tokens)
    merge: tuple[str, str] | None = None


@dataclass(frozen=True)
class Extension:
    """An original tokenizer, the extended one, and the tokens that are new."""

    original: PreTrainedTokenizerFast  # the tokenizer as it was
    extended: PreTrainedTokenizerFast  # the tokenizer with new ids V to V + N − 1
    tokens: tuple[NewToken, ...]  # the new tokens in the order of their ids
    strategy: Strategy  # `added`, `merges` or `phrases`
    V: int  # ids of the original tokenizer, gaps included
    report: Mapping[str, Any]  # what happened: what was asked for, left out, and noted

    @property
    def N(self) -> int:
        """Number of new tokens."""
        return len(self.tokens)

    @property
    def new_ids(self) -> range:
        """Ids of the new tokens."""
        return range(self.V, self.V + self.N)

    def spell(self, token: int) -> str:
        """Return the piece of an id, as the extended tokenizer writes it."""
        return str(self.extended.convert_ids_to_tokens(token))

    def count(self, texts: Iterable[str]) -> dict[int, int]:
        """Return the occurrences of each new token in texts, by id; tokens that do not occur have 0."""
        counts: Counter[int] = Counter()
        for ids in encode_each(self.extended, texts):
            counts.update(i for i in ids if i >= self.V)
        return {i: counts.get(i, 0) for i in self.new_ids}

    def table(self) -> pd.DataFrame:
        """Return the new tokens, one a row."""
        rows = []
        for t in self.tokens:
            pieces = " | ".join(self.original.convert_ids_to_tokens(list(t.subtokens)))
            rows.append((t.id, t.text, pieces, len(t.subtokens), len(t.raw), t.count, t.tokens_saved, t.wanted))
        columns = ["id", "text", "subtokens", "k", "bytes", "count", "tokens_saved", "wanted"]
        return pd.DataFrame(rows, columns=columns)

    def save(self, folder: str | Path) -> None:
        """Write `original/` and `extended/` (plain Hugging Face folders) and `tokens.json`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_tokenizer(self.original, folder / "original")
        save_tokenizer(self.extended, folder / "extended")
        tokens = [{**vars(t), "raw": t.raw.hex(), "subtokens": list(t.subtokens)} for t in self.tokens]
        content = {"strategy": self.strategy, "V": self.V, "N": self.N}
        write_json(folder / "tokens.json", {**content, "report": dict(self.report), "tokens": tokens})


def load_extension(folder: str | Path) -> Extension:
    """Load what `Extension.save` wrote.

    TokenizerError where the folder holds no extension, or its files are damaged or do not fit together.

    Example:
        >>> from vocabx_utils import add_tokens
        >>> add_tokens(tokenizer, [" groupby"]).save(scratch / "extension")
        >>> load_extension(scratch / "extension").tokens[0].text
        ' groupby'
    """
    folder = Path(folder)
    if not (folder / "tokens.json").is_file():
        raise TokenizerError(
            f"{folder} holds no extension (tokens.json is missing). `vocabx tokens propose` and notebook 01 write one."
        )
    try:
        return _read_extension(folder)
    except TokenizerError:
        raise
    except Exception as error:  # of JSON, of files and of the tokenizers library: no common base class
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise TokenizerError(f"{folder} is damaged ({reason}). Make the extension again.") from error


def _read_extension(folder: Path) -> Extension:
    content = read_json(folder / "tokens.json")
    original, extended = (read_tokenizer(str(folder / side)) for side in ("original", "extended"))
    tokens = tuple(map(parse_token, content["tokens"]))
    spelling = spelling_of(extended)
    fits = spelling.first_free_id == content["V"] + len(tokens)
    if not fits or any(spelling.raw_of(t.id) != t.raw for t in tokens):
        raise TokenizerError(
            f"{folder}: tokens.json and extended/ hold different new tokens. Make the extension again."
        )
    return Extension(original, extended, tokens, content["strategy"], content["V"], content["report"])
