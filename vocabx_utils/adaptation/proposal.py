"""The new tokens, and what they save on text that they were not chosen on, before anything expensive."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from vocabx_utils.adaptation.settings import AdaptSettings
from vocabx_utils.adaptation.texts import Split, texts_by_kind
from vocabx_utils.files import write_table
from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.audit import audit_extension, gains
from vocabx_utils.vocabulary.extend import extend_tokenizer
from vocabx_utils.vocabulary.options import Strategy, TokenOptions
from vocabx_utils.vocabulary.tokens import Extension, load_extension

MIN_COUNT = 4  # fewest occurrences of a new token in the training texts
SMALL_GAIN = 10.0  # tokens saved of 1,000, below which new tokens are hardly worth their rows


def propose(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    split: Split,
    settings: AdaptSettings,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Choose tokens on the training texts, check them, and measure what they save on the held-out ones.

    Writes `extension/` and `tokens.csv` below the folder.

    Returns:
        `strategy` and why (`choice`), `gains` (rows of `audit.gains`, by file type, the last one for all), `changed`
        (share of positions outside new tokens whose token differs, held-out), `warnings`, `top` (what saves most).

    Raises:
        TokenizerError: the tokenizer cannot be extended, the texts offer fewer tokens than were asked for, or some text
            would not come back.
    """
    extension, choice = _choose(tokenizer, split, settings, tell)
    audit = audit_extension(extension, texts_by_kind(split.held_out), [text.plain for text in split.train])
    if not audit.passed:
        broken = [text for text, _, _ in audit.round_trips] or [token.text for token in audit.unreachable]
        raise TokenizerError(
            f"{len(broken)} texts do not come back as under the original tokenizer, or tokens that no text produces, "
            f"such as {broken[0]!r}. Use strategy 'merges'; where it is, this is a bug."
        )
    extension.save(folder / "extension")
    table = extension.table().sort_values("tokens_saved", ascending=False, kind="stable")
    write_table(folder / "tokens.csv", table)
    changed = 0 if audit.changed_positions is None else len(audit.changed_positions)
    found: dict[str, Any] = {
        "strategy": extension.strategy,
        "choice": choice,
        "N": extension.N,
        "gains": audit.by_type.to_dict("records"),
        "changed": changed / max(audit.old_positions, 1),
        "check_changed": audit.check_changed,
        "top": table.head(40)[["id", "text", "subtokens", "count", "tokens_saved"]].to_dict("records"),
    }
    return found | {"warnings": _warnings(found, settings)}


def load(folder: Path) -> Extension:
    """Load the extension that `propose` wrote."""
    return load_extension(folder / "extension")


def total(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the row of all texts of a table of gains."""
    return rows[-1]


def _choose(
    tokenizer: PreTrainedTokenizerFast, split: Split, settings: AdaptSettings, tell: Callable[[str], None]
) -> tuple[Extension, str]:
    """The extension, and in a line why this strategy."""
    if settings.strategy != "auto":
        return _extend(tokenizer, split, settings.n, settings.strategy), f"strategy {settings.strategy}, as asked for"
    made: dict[Strategy, Extension] = {}
    saved: dict[Strategy, float] = {}
    reasons = []
    strategy: Strategy
    for strategy in ("merges", "phrases"):
        tell(f"  trying strategy {strategy}")
        try:
            made[strategy] = _extend(tokenizer, split, settings.n, strategy)
        except TokenizerError as error:
            reasons.append((strategy, error))
            continue
        read = {"all": [text.plain for text in split.validation]}
        saved[strategy] = float(gains(made[strategy], read)["saved_per_1000"].iloc[-1])
    if not made:
        raise reasons[0][1]
    best = max(saved, key=lambda strategy: saved[strategy])
    told = ", ".join(f"{strategy} saves {per:.1f} of 1,000 tokens" for strategy, per in saved.items())
    refused = "".join(f"; {strategy} cannot be used here ({error})" for strategy, error in reasons)
    return made[best], f"strategy {best}, chosen on the validation files: {told}{refused}"


def _extend(tokenizer: PreTrainedTokenizerFast, split: Split, n: int, strategy: Strategy) -> Extension:
    texts = [text.plain for text in split.train]
    files = len({text.name for text in split.train})
    options = TokenOptions(min_count=MIN_COUNT, min_files=min(2, files))
    try:
        return extend_tokenizer(tokenizer, texts, n, strategy, options, min_train_count=MIN_COUNT)
    except TokenizerError as error:
        offered = re.search(r"the texts offer ((?:at most )?\d+)", str(error))
        if offered is None:
            raise
        raise TokenizerError(
            f"{n} new tokens were asked for; the training files offer {offered[1]} that occur {MIN_COUNT} times or "
            f"more and stand in {options.min_files} files or more (strategy {strategy}). Ask for fewer (--n), or give "
            "more text."
        ) from error


def _warnings(found: Mapping[str, Any], settings: AdaptSettings) -> list[str]:
    """What speaks against going on."""
    row = total(found["gains"])
    if row["saved_per_1000"] >= SMALL_GAIN:
        return []
    packed = row["bytes"] / max(row["tokens_before"], 1)
    best = found["top"][0] if found["top"] else None
    reasons = [
        f"the tokenizer already packs {packed:.1f} bytes of this text into a token",
        f"new tokens stand at {100 * row['new_share']:.2f} % of the positions of the held-out files",
    ]
    if best is not None:
        reasons.append(f"the most useful one, {best['text']!r}, occurs {best['count']} times in the training texts")
    advice = "give text that the tokenizer was not made for"
    if found["strategy"] == "merges" and settings.strategy == "merges":
        advice += ", or let tokens cross words (--strategy auto)"
    return [
        f"not worth it: {settings.n} new tokens save {row['saved_per_1000'] / 10:.2f} % of the tokens of held-out "
        f"text. Here is why: {'; '.join(reasons)}. What may help: {advice}."
    ]
