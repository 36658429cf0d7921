"""Whole texts under two tokenizers of every kind, cases B23, B25."""

from __future__ import annotations

import itertools
import json
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from fixtures.alignment_tokenizers import FAMILIES, LINES, counted_ends, make_tokenizer, with_added, with_merges
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.alignment import IDENTICAL, MERGED, align_ids, align_text, align_texts, summarize
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.proposals import select_tokens
from vocabx_utils.vocabulary.spelling import spelling_of

EXTENSIONS = [f"{kind}:{family}" for family in FAMILIES for kind in ("added", "merges")]
STRESS = [
    "i ⭢ j",
    "Karadžić groupby",
    "e\u0301 e\u0301 rés groupbye\u0301 numpy\u0327",
    "👩‍👩‍👧 🙂🙃 日本語",
    "a\r\n\tb\x00c\u00a0 numpy",
    "  groupby  groupby\n\n",
    "naïve 🙂 df.groupby(x)",
    "groupby",
    " groupby",
    "<|end|>groupby<|end|><s> x",
    "",
    " ",
    "\u2581groupby\u2581 x",
    "\ud7ff\uffff\U0010ffff",
]


@cache
def extension(name: str) -> SimpleNamespace:
    kind, family = name.split(":")
    return with_added(family) if kind == "added" else with_merges(family)


@cache
def original(family: str) -> PreTrainedTokenizerFast:
    return make_tokenizer(family)


def normalised(tokenizer, text: str) -> bytes:
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return text.replace("\u2581", " ").encode()


def spelled(tokenizer, ids) -> bytes:
    """Bytes of a token prefix, as the original tokenizer would read its text: the naive way, without ends."""
    spelling = spelling_of(tokenizer)
    raw = b"".join(spelling.raws[index] for index in ids)
    if spelling.rewrites:
        whole = raw.decode(errors="ignore")  # a cut last character is left as it is
        return normalised(tokenizer, whole) + raw[len(whole.encode()) :]
    return raw


def check_alignment(pair, text: str, add_special_tokens: bool = False) -> None:
    found = align_text(pair, text, add_special_tokens=add_special_tokens)
    for i, j in found.boundaries.tolist():
        assert found.original_ends[i] == found.extended_ends[j]
    rising = np.diff(found.boundaries, axis=0)
    assert (rising > 0).all()
    both = set(found.original_ends.tolist()) & set(found.extended_ends.tolist())
    paired = set(found.original_ends[found.boundaries[:, 0]].tolist())
    if "nfc" not in pair.name or normalised(pair.original, text) == text.encode():
        assert both - {0} <= paired
    if len(found.original_ids) and not found.original_special.all():
        assert int(found.original_ends[-1]) in paired
    if "nfc" not in pair.name:
        left, right = counted_ends(pair, text)
        if not add_special_tokens:
            assert (found.original_ends.tolist(), found.extended_ends.tolist()) == (left, right)
    if spelling_of(pair.original).segment_prefix != "none":
        return  # a space before or after an added token: the sides do not spell the same bytes
    for i, j in found.boundaries.tolist():
        left, right = (
            spelled(t, ids)
            for t, ids in ((pair.original, found.original_ids[: i + 1]), (pair.extended, found.extended_ids[: j + 1]))
        )
        assert left == right


@pytest.mark.parametrize("name", EXTENSIONS)
@pytest.mark.parametrize("text", STRESS)
def test_stress_texts(name, text):
    pair = extension(name)
    check_alignment(SimpleNamespace(**vars(pair), name=name), text)


ALPHABET = st.sampled_from(
    ["groupby", "numpy", "é", "e\u0301", "\u0301", " ", "\n", "🙂", " 日", "compute_mean", "s", "x"]
)


@pytest.mark.parametrize("name", EXTENSIONS)
@given(text=st.one_of(st.text(max_size=30), st.lists(ALPHABET, max_size=12).map("".join)))
@settings(max_examples=60, deadline=None)
def test_random_texts(name, text):
    pair = extension(name)
    check_alignment(SimpleNamespace(**vars(pair), name=name), text)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_batches_equal_single_texts(name):
    pair = extension(name)
    texts = [*STRESS, *LINES[:4]]
    for characters in (1, 60, 1_000_000):
        for text, found in zip(texts, align_texts(pair, texts, batch_characters=characters), strict=True):
            single = align_text(pair, text)
            for field in ("original_ids", "extended_ids", "original_ends", "extended_ends", "boundaries", "groups"):
                np.testing.assert_array_equal(getattr(found, field), getattr(single, field))
    assert align_texts(pair, []) == []


def test_no_new_token_means_identity():
    pair = SimpleNamespace(original=original("byte-level"), extended=make_tokenizer("byte-level"))
    for text in STRESS:
        found = align_text(pair, text)
        steps = np.arange(len(found.original_ids))
        assert found.boundaries.tolist() == np.stack([steps, steps], axis=1).tolist()
        assert found.first_divergence == len(steps) and not len(found.groups)
        assert not found.kind.any()


def test_kinds_groups_and_anchors_of_a_merged_span():
    pair = extension("added:byte-level")
    found = align_text(pair, "x.groupby")
    spelling = spelling_of(pair.original)
    subtokens = pair.original.encode("groupby", add_special_tokens=False)
    start = len(found.original_ids) - len(subtokens)
    assert b"".join(spelling.raws[k] for k in found.original_ids[start:]) == b"groupby"
    assert found.groups.tolist() == [[start, start + len(subtokens), start, start + 1]]
    assert found.first_divergence == start
    last, kind = found.pairs("last")
    assert last[-1].tolist() == [start + len(subtokens) - 1, start] and kind[-1] == MERGED
    assert found.pairs("first")[0][-1].tolist() == [start, start]
    assert len(found.pairs("none")[0]) == start and (found.pairs("none")[1] == IDENTICAL).all()
    with pytest.raises(ValueError, match="first, last, none"):
        found.pairs("middle")


def test_b23_characters_of_several_tokens_are_neither_lost_nor_doubled():
    """[tokenizers#156, #977] Several tokens share one character, so characters cannot tell positions apart."""
    for name, text in itertools.product(EXTENSIONS, ("i ⭢ j", "Karadžić", "e\u0301 x", "🙂🙃 numpy")):
        pair = extension(name)
        found = align_text(pair, text)
        assert len(set(found.boundaries[:, 0].tolist())) == len(found.boundaries)
        assert len(set(found.boundaries[:, 1].tolist())) == len(found.boundaries)
        inside = found.groups
        covered = sum((b - a) for a, b, *_ in inside.tolist()) + int((found.kind == IDENTICAL).sum())
        assert covered == len(found.original_ids)


@pytest.mark.parametrize("name", ["added:byte-level", "merges:byte-level", "added:nfc", "merges:digits"])
@pytest.mark.parametrize("side", ["original", "extended"])
@pytest.mark.parametrize("where", ["start", "end", "both"])
def test_b25_a_special_on_one_side_only(name, side, where):
    """[trl#4392, #4393] A BOS or EOS on one side must not shift, lose or merge any position."""
    pair = extension(name)
    plain = align_text(pair, "naïve 🙂 df.groupby(x)")
    ids = {"original": plain.original_ids, "extended": plain.extended_ids}
    begin, end = (pair.original.convert_tokens_to_ids(token) for token in ("<|begin|>", "<|end|>"))
    before, after = ([begin] if where != "end" else []), ([end] if where != "start" else [])
    changed = dict(ids) | {side: np.concatenate([before, ids[side], after]).astype(np.int64)}
    found = align_ids(pair, changed["original"], changed["extended"])
    shift = np.array([len(before), 0] if side == "original" else [0, len(before)])
    np.testing.assert_array_equal(found.boundaries, plain.boundaries + shift)
    np.testing.assert_array_equal(found.kind, plain.kind)
    np.testing.assert_array_equal(found.groups, plain.groups + np.repeat(shift, 2))
    both = align_ids(pair, *(np.concatenate([[begin], ids[key], [end]]) for key in ("original", "extended")))
    assert len(both.boundaries) == len(plain.boundaries) + 2
    assert both.boundaries[0].tolist() == [0, 0]


def test_specials_inside_a_text_pair_with_themselves():
    pair = extension("added:byte-level")
    found = align_text(pair, "<|begin|>groupby<|end|><|end|>numpy<|end|>")
    assert int(found.original_special.sum()) == 4
    specials = found.original_special[found.boundaries[:, 0]]
    assert int(specials.sum()) == 4 and (found.kind[specials] == IDENTICAL).all()


def test_a_mark_after_an_added_token_breaks_no_later_position():
    """NFC joins `y` + cedilla's kin in the original text, but an added token is cut out before that."""
    pair = extension("added:nfc")
    text = "numpye\u0301 groupbye\u0301 x numpy\u0301 tail"
    found = align_text(pair, text)
    assert found.original_ends[-1] == found.extended_ends[-1] == len(normalised(pair.original, text))
    tail = len(pair.original.encode(" tail", add_special_tokens=False))
    assert (found.kind[-tail:] == IDENTICAL).all()
    left = spelling_of(pair.original).raws[found.original_ids[found.boundaries[-tail - 1, 0]]]
    assert left != b"y"


def test_sentencepiece_space_after_an_added_token_shifts_nothing():
    pair = extension("added:sentencepiece")
    found = align_text(pair, "x groupby y groupby(z) numpy")
    assert len(found.extended_ids) and found.original_ends[-1] == found.extended_ends[-1]
    spelling = spelling_of(pair.original)
    for (i, j), kind in zip(found.boundaries.tolist(), found.kind.tolist(), strict=True):
        if kind == IDENTICAL:
            assert spelling.raws[found.original_ids[i]] == spelling.raws[found.extended_ids[j]]
    assert (found.kind == MERGED).sum() >= 3


def test_equal_totals_do_not_hide_a_missing_and_an_extra_space():
    """A text that begins with a new token lacks a space, and has one too many behind the next one."""
    pair = with_added("sentencepiece", ("zqw",))
    text = "zqwzqw据 . 文"
    found = align_text(pair, text)
    spelt = pair.original.convert_ids_to_tokens(found.original_ids)
    assert spelt[:7] == ["\u2581", "<0x7A>", "<0x71>", "<0x77>", "<0x7A>", "<0x71>", "<0x77>"]
    assert pair.extended.convert_ids_to_tokens(found.extended_ids[:4]) == ["zqw", "zqw", "\u2581", "<0xE6>"]
    expected = [[3, 0], [6, 1], *([k, k - 4] for k in range(7, len(spelt)))]  # E[2] is the extra space alone
    assert found.boundaries.tolist() == expected
    assert align_ids(pair, found.original_ids, found.extended_ids).boundaries.tolist() == expected


def test_a_new_token_of_spaces_is_not_taken_for_the_prefix():
    pair = with_added("sentencepiece", ("  ", " x"))
    for text in ("  a", "   a", "a  b", " x x", "<s>  a<s> x", "  <s>  "):
        assert align_text(pair, text).extended_ends.tolist() == counted_ends(pair, text)[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_extension_and_alignment_accept_the_same_tokenizers(family):
    """One rule: whoever can be aligned can be extended, and the other way round."""
    tokenizer = make_tokenizer(family)
    assert align_text(SimpleNamespace(original=tokenizer, extended=tokenizer), "x").boundaries.size


@pytest.mark.parametrize("missing", ["byte_fallback", "space mark"])
def test_half_a_sentencepiece_tokenizer_is_refused_by_both(missing):
    layout = json.loads(make_tokenizer("metaspace").backend_tokenizer.to_str())
    if missing == "byte_fallback":
        layout["model"]["byte_fallback"] = False
    else:
        layout["pre_tokenizer"] = None
    backend = Tokenizer.from_str(json.dumps(layout))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=None, eos_token=None)
    for attempt in (
        lambda: spelling_of(tokenizer),
        lambda: align_text(SimpleNamespace(original=tokenizer, extended=tokenizer), "x"),
        lambda: add_tokens(tokenizer, ["groupby"]),
        lambda: select_tokens(["groupby groupby"], tokenizer, 1),
    ):
        with pytest.raises(TokenizerError, match="neither byte-level nor SentencePiece-style"):
            attempt()


def test_sequences_of_different_texts_are_refused():
    pair = extension("added:byte-level")
    left, right = (pair.original.encode(text, add_special_tokens=False) for text in ("abc def", "abd"))
    with pytest.raises(ValueError, match="do not read the same text: after byte 2"):
        align_ids(pair, left, right)


def test_summary_counts_every_token_once():
    pair = extension("added:byte-level")
    texts = ["import numpy as np", "x = 1", "df.groupby(x).mean()"]
    counts = summarize(align_texts(pair, texts), len(pair.original))
    assert counts["texts"] == 3 and counts["texts_that_diverge"] == 2
    assert counts["bytes"] == sum(len(text.encode()) for text in texts)
    assert counts["merged_pairs"] == 2
    assert counts["groups_of_one_new_token"] == 1  # before `numpy` the space became a token of its own
    assert counts["original_tokens"] - counts["original_unpaired"] == counts["identical_pairs"] + 2
    assert counts["extended_unpaired"] == 1
    assert counts["new_tokens"] == 2 and counts["share_new"] == 2 / counts["extended_tokens"]
    assert counts["bytes_per_new"] == (len("numpy") + len("groupby")) / 2
    saved = counts["original_tokens"] - counts["extended_tokens"]
    assert counts["subtokens_per_new"] == (saved + 2) / 2  # each new token replaces itself and what is saved
    assert counts["share_unpaired"] == 1 / counts["extended_tokens"]
    assert summarize([], 5)["share_new"] == 0 == summarize([], 5)["share_unpaired"]
    assert summarize([], 5)["texts"] == 0 and summarize([], 5)["share_saved"] == 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("strategy", ["added", "merges"])
def test_extensions_made_by_the_package_align(family, strategy):
    if strategy == "added" and family == "prefix-space":
        pytest.skip("a space before every stretch of text: refused, see test_extend")
    pair = add_tokens(make_tokenizer(family), ["groupby", " groupby", "numpy"], strategy=strategy)
    for text in (*STRESS, *LINES[:4]):
        check_alignment(SimpleNamespace(original=pair.original, extended=pair.extended, name=family), text)
    found = align_text(pair, "x groupby y groupby z")
    assert found.groups[:, 3].sum() - found.groups[:, 2].sum() == len(found.groups) >= 2


@given(text=st.lists(ALPHABET, max_size=14).map("".join))
@settings(max_examples=60, deadline=None)
def test_first_anchor_equals_a_naive_walk(text):
    found = align_text(extension("added:byte-level"), text)
    expected, before = [], (-1, -1)
    for i, j in found.boundaries.tolist():
        same = found.original_ids[i] == found.extended_ids[j]
        expected.append([i, j] if same else [before[0] + 1, before[1] + 1])
        before = (i, j)
    assert found.pairs("first")[0].tolist() == expected
