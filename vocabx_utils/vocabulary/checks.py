"""What must not happen to an extension: a token that no text produces, a text that does not come back."""

from __future__ import annotations

from collections.abc import Sequence

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.encoding import encode_all, encode_each
from vocabx_utils.vocabulary.spelling import backend_of
from vocabx_utils.vocabulary.tokens import Extension, NewToken

_CONTEXTS = ("{}", "x{}", "x {}", "{} x", "({})", "x\n{}\nx", "x{}x", ".{}(", "\n{}x", "0{}0")


def check_reachable(extension: Extension, tokens: Sequence[NewToken]) -> None:
    """Check that text can produce each token; TokenizerError lists those that no probe text produced."""
    if dead := unreachable(extension, tokens):
        raise TokenizerError(
            f"No text produces {', '.join(repr(t.text) for t in dead)}: a row for "
            f"{'it' if len(dead) == 1 else 'them'} would never be trained. Leave out, or use the other strategy."
        )


def check_round_trips(extension: Extension) -> None:
    """Check that texts with new tokens come back as under the original tokenizer; TokenizerError lists the others."""
    whole = [t for t in extension.tokens if t.text.encode("utf-8", "replace") == t.raw]
    lines = ["|".join([t.text * 2, *(c.format(t.text) for c in _CONTEXTS)]) for t in whole]
    broken = {text for text, _, _ in round_trip_failures(extension, lines)}
    if guilty := [t.text for t, line in zip(whole, lines, strict=True) if line in broken]:
        raise TokenizerError(
            f"Text with {', '.join(map(repr, guilty))} does not come back as under the original tokenizer. "
            "Leave out, or use the other strategy."
        )


def round_trip_failures(extension: Extension, texts: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return texts that the extended tokenizer gives back otherwise than the original one, with what each gives back.

    The original is the yardstick, not the text: a normaliser (Qwen's NFC) changes text before any token is made.
    """
    before, after = (
        backend_of(tokenizer).decode_batch(encode_all(tokenizer, texts), skip_special_tokens=False)
        for tokenizer in (extension.original, extension.extended)
    )
    return [(t, b, a) for t, b, a in zip(texts, before, after, strict=True) if a != b]


def unreachable(extension: Extension, tokens: Sequence[NewToken]) -> list[NewToken]:
    """Return tokens that do not show in any of a few short contexts of their own text."""
    probes = [(t.id, c.format(text)) for t in tokens for text in _texts_with(t.raw) for c in _CONTEXTS]
    encoded = encode_each(extension.extended, (probe for _, probe in probes))
    shown = {token for (token, _), ids in zip(probes, encoded, strict=True) if token in ids}
    return [t for t in tokens if t.id not in shown]


def _texts_with(raw: bytes) -> list[str]:
    """Texts that hold these bytes: themselves, or, where they cut a character, with what may stand around them."""
    try:
        return [raw.decode()]
    except UnicodeDecodeError:
        texts = (head + raw + tail for head in _HEADS for tail in _TAILS)
        return [text for whole in texts if (text := whole.decode("utf-8", "ignore")).encode() == whole]


_CONTINUED = [bytes([b]) for b in range(0x80, 0xC0)]
_TAILS = [b"", *_CONTINUED, *(b + b"\x80" for b in _CONTINUED), *(b + b"\x80\x80" for b in _CONTINUED)]
_HEADS = [b"", *(bytes([b]) for b in range(0xC2, 0xF5))]
_HEADS += [bytes([b, c]) for b in range(0xE0, 0xF5) for c in (0x80, 0x90, 0xA0)] + [b"\xf0\x9f\x98", b"\xf0\x9d\x94"]
