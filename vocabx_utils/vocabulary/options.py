"""What may become a new token, and by which of three strategies it becomes one.

`added` is the thesis's: added tokens, which are cut out of a text before anything else happens. `merges` is ours:
merges are appended to the original ones, so text without new tokens tokenizes exactly as before. `phrases` crosses
words: pieces that do are let through by the pre-tokenizer or are added tokens, pieces inside a word appended merges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.spelling import Spelling

Strategy = Literal["added", "merges", "phrases"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
WORD_STRATEGIES: tuple[Strategy, ...] = ("added", "merges")  # those whose tokens stay inside words

PhraseForm = Literal["auto", "patterns", "literal"]  # see `phrase_forms`


@dataclass(frozen=True)
class TokenOptions:
    """What may become a token; the same options for the notebook, the command and a call.

    TokenizerError where a number is too small.
    """

    min_count: int = 2  # fewest occurrences in the corpus
    # longest token inside a word, in UTF-8 bytes (the thesis names no limit: `added` uses it only when below 32)
    max_bytes: int = 32
    min_files: int = 1  # fewest texts that a token stands in when it is chosen
    across_digits: bool = False  # let merges join digits to digits and to letters (not `added`)
    # let tokens be pure whitespace; None is no for `merges`, yes for the others (the thesis names no such step)
    keep_whitespace: bool | None = None
    # texts (or bytes) that must not become tokens; `Ġword` and `▁word` mean the word with its leading space
    exclude: frozenset[str | bytes] = frozenset()
    # whether tokens that the corpus never shows, being steps of merges towards longer ones, count among those wanted.
    # If not, the steps come on top (not `added`; they have `count` 0).
    count_steps: bool = True
    # size of the fresh BPE (`added` only), which the thesis does not state; None is the larger of 8,000 and 16 times
    # the tokens wanted
    fresh_vocab_size: int | None = None
    # longest token that crosses words, in UTF-8 bytes (`phrases` only): a line of code with its indentation fits
    max_phrase_bytes: int = 64
    line_breaks: bool = True  # let phrases hold line breaks (`phrases` only)
    # let pieces that stay inside a word compete with phrases, by what saves more (`phrases` only); else phrases alone
    mix_words: bool = True
    # largest share of a phrase's occurrences that may cut old tokens (`phrases` only, in the form `literal`)
    max_cut: float = 0.5
    # how a phrase stands in the tokenizer: let through by the pre-tokenizer (`patterns`), or as an added token
    # (`literal`); `auto` is the former where the pre-tokenizer's expression is known
    phrase_form: PhraseForm = "auto"

    def __post_init__(self) -> None:
        if self.phrase_form not in get_args(PhraseForm):
            raise TokenizerError(f"phrase_form is {self.phrase_form!r}; expected one of {get_args(PhraseForm)}.")
        if self.max_phrase_bytes < 2 or not 0 <= self.max_cut <= 1:
            raise TokenizerError(
                f"max_phrase_bytes is {self.max_phrase_bytes} and max_cut {self.max_cut}; expected at least 2, and a "
                "share from 0 to 1."
            )
        if self.min_count < 1 or self.max_bytes < 2 or self.min_files < 1:
            raise TokenizerError(
                f"min_count is {self.min_count}, max_bytes {self.max_bytes} and min_files {self.min_files}; "
                "expected at least 1, 2 and 1."
            )

    def barred(self, spelling: Spelling) -> frozenset[bytes]:
        """Return the bytes of what must not become a token."""
        return frozenset(spelling.spaced_form(e).encode() if isinstance(e, str) else e for e in self.exclude)


DEFAULT_OPTIONS = TokenOptions()


def check_strategy(strategy: str, spelling: Spelling) -> None:
    """Check that a strategy exists and that texts come back under it; TokenizerError says why they do not."""
    if strategy not in STRATEGIES:
        raise TokenizerError(f"strategy is {strategy!r}; expected 'added' or 'merges' or 'phrases'.")
    if strategy == "merges":
        return
    if strategy == "phrases" and spelling.kind != "byte-level":
        raise TokenizerError(
            "Strategy 'phrases' needs a byte-level tokenizer, whose pre-tokenizer says where words end; this one is "
            "SentencePiece-style. Use strategy 'merges'."
        )
    if spelling.segment_prefix == "unless_space":
        raise TokenizerError(
            "This tokenizer puts a space before each stretch of text between added tokens that has none, so `f(x)` "
            "with a new added token f would come back as `f (x)`. Use strategy 'merges', which has no such loss."
        )
    if spelling.segment_prefix == "added" and spelling.rewrites:
        raise TokenizerError(
            "This tokenizer's normaliser both changes characters and puts a space before each stretch of text, which "
            "cannot be told apart behind an added token. Use strategy 'merges'."
        )
