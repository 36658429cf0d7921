"""Rebuild a tokenizer with more entries so that no id that existed before moves.

The backend numbers an added token that is missing from `model.vocab` after the size of that vocabulary. Entries put
behind it would push such tokens (Qwen's `<|im_end|>`) up by one. So every added token enters `model.vocab` first,
under the id that it has; the numbers then hold through any number of save and load cycles.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from vocabx_utils.tokenizer_files import plain_tokenizer
from vocabx_utils.vocabulary.spelling import Spelling, spelling_of

# Unicode noncharacters, never used in interchange: they fence added tokens while a text is decoded.
_OPEN, _CLOSE = "\ufdd1", "\ufdd0"


def merged_layout(spelling: Spelling, pieces: Sequence[str], merges: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Layout with new pieces at ids V, V + 1, … and their merges (pairs of pieces) behind the original ones."""
    layout = _with_added_tokens_in_vocab(spelling)
    model = layout["model"]
    model["vocab"] |= {piece: spelling.first_free_id + k for k, piece in enumerate(pieces)}
    old_as_text = bool(model["merges"]) and isinstance(model["merges"][0], str)
    model["merges"] = model["merges"] + [f"{a} {b}" if old_as_text else [a, b] for a, b in merges]
    return layout


def added_layout(spelling: Spelling, texts: Mapping[str, bool], base: dict[str, Any] | None = None) -> dict[str, Any]:
    """Layout with new added tokens at ids V, V + 1, …, not special, or behind those of `base`.

    They are matched before normalisation, unless the normaliser changes characters: NFC joins a mark with the letter
    before it, which it cannot once the letter is cut out inside an added token.

    Args:
        texts: of each token in the order of ids, and whether it may match only where it is a whole word.
        base: a layout of `merged_layout`, which is built upon.
    """
    layout = base or _with_added_tokens_in_vocab(spelling)
    first = max(layout["model"]["vocab"].values(), default=-1) + 1
    for token_id, (text, single_word) in enumerate(texts.items(), first):
        layout["model"]["vocab"][text] = token_id
        entry = {"id": token_id, "content": text, "single_word": single_word}
        entry |= {"lstrip": False, "rstrip": False, "normalized": spelling.rewrites, "special": False}
        layout["added_tokens"].append(entry)
    layout["decoder"] = _decoder_for_added(spelling, list(texts))
    return layout


def _with_added_tokens_in_vocab(spelling: Spelling) -> dict[str, Any]:
    layout = copy.copy(spelling.layout)
    layout["model"] = dict(layout["model"])
    layout["added_tokens"] = sorted(layout["added_tokens"], key=lambda t: t["id"])
    vocab = dict(layout["model"]["vocab"])
    for token in layout["added_tokens"]:
        vocab.setdefault(token["content"], token["id"])
    layout["model"]["vocab"] = dict(sorted(vocab.items(), key=lambda entry: entry[1]))
    return layout


def _decoder_for_added(spelling: Spelling, texts: list[str]) -> dict[str, Any] | None:
    """The decoder, made exact for added tokens.

    Two things go wrong in the plain one. Byte-level decoding reads every token as byte symbols, so `đem` comes out
    as a control character and two letters: such a text is respelt in byte symbols first. SentencePiece-style
    tokenizers put a space mark in front of whatever follows an added token: the token is fenced so that this space
    (and no other) can be taken out again, and the one put in that the original shows behind its own added tokens.
    """
    decoder = spelling.layout["decoder"]
    steps = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder] if decoder else []
    if spelling.kind == "byte-level":
        respelt = {t: spelling.piece(t) for t in texts if not t.isascii() and spelling.raw(t) != t.encode()}
        if not respelt:
            return decoder
        return _sequence([_replace(rf"\A{re.escape(t)}\z", piece) for t, piece in respelt.items()] + steps)
    if spelling.segment_prefix != "added" or not texts:
        return decoder
    any_text = "|".join(map(re.escape, texts))
    fence = [_replace(rf"\A(?=(?:{any_text})\z)", _OPEN), _replace(rf"\A{_OPEN}(?m:.*)\K\z", _CLOSE)]
    unfence = [_replace(f"{_CLOSE} ", ""), *_spaces_behind(spelling), _replace(f"[{_OPEN}{_CLOSE}]", "")]
    return _sequence(fence + steps + unfence)


def _spaces_behind(spelling: Spelling) -> list[dict[str, Any]]:
    """Steps that put a space between an original added token and a new one, as the original shows it.

    A token with `rstrip` has taken the spaces of the text: there the new token's own is the one.
    """
    steps = []
    for takes_spaces, ahead in ((False, ""), (True, "(?! )")):
        old = [re.escape(t["content"]) for t in spelling.layout["added_tokens"] if t["rstrip"] is takes_spaces]
        if old:
            steps.append(_replace(rf"(?:{'|'.join(old)})\K{_OPEN}{ahead}", f" {_OPEN}"))
    return steps


def _sequence(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": steps}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def build(layout: dict[str, Any], like: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Build a plain tokenizer from a layout, with the special tokens, chat template and settings of `like`.

    It is a `PreTrainedTokenizerFast`, whatever the class of `like`: classes of single models build their backend anew
    from vocabulary and merges and would lose the rest.
    """
    tokenizer = plain_tokenizer(like, Tokenizer.from_str(json.dumps(layout)))
    spelling_of(tokenizer, layout)  # for later: to ask a large tokenizer for its layout takes as long as to build it
    return tokenizer
