"""Alignment: the thesis's example, the exact rule against a naive one, tokenizer families, cases B23, B25."""

from __future__ import annotations

import itertools
import json
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from alignment_tokenizers import FAMILIES, LINES, counted_ends, make_tokenizer, with_added, with_merges
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vocabx_utils.vocabulary.alignment import (
    IDENTICAL,
    MERGED,
    ORDERS,
    TokenMapping,
    align_boundaries,
    align_ids,
    align_text,
    align_texts,
    byte_ends,
    byte_table,
    first_divergence,
    map_token_sequences,
    piece_ends,
    summarize,
    wrong_pairs,
)
from vocabx_utils.vocabulary.families import TokenizerError, family_of
from vocabx_utils.vocabulary.tokens import extend_tokenizer, select_tokens

ORIGINAL = ["int", " ", "Cell", "Connect", "D", "L", "S", "(", "void", ")", " {", " ", "return", " ", "0", ";", " }"]
EXTENDED = ["int", " ", "CellConnect", "DLS", "(", "void", ")", " {", " ", "return", " ", "0", ";", " }"]
SIMILAR = [(0, 0), (1, 1), *((k, k - 3) for k in range(7, 17))]
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


def naive_pairs(left: list[int], right: list[int]) -> list[list[int]]:
    return [[i, j] for i, a in enumerate(left) for j, b in enumerate(right) if a == b]


# --- the thesis's algorithm -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_worked_example_of_the_thesis(order):
    assert (len(ORIGINAL), len(EXTENDED)) == (17, 14)
    mapping = map_token_sequences(ORIGINAL, EXTENDED, order=order)
    assert mapping.similar == SIMILAR
    assert mapping.divergent == [([2, 3, 4, 5, 6], [2, 3])]
    assert wrong_pairs(mapping, piece_ends(ORIGINAL), piece_ends(EXTENDED)) == []


def test_worked_example_with_ids_is_the_same():
    number = {text: index for index, text in enumerate(dict.fromkeys(ORIGINAL + EXTENDED))}
    mapping = map_token_sequences([number[t] for t in ORIGINAL], [number[t] for t in EXTENDED])
    assert mapping == map_token_sequences(ORIGINAL, EXTENDED)


def test_exact_rule_splits_the_thesis_group_at_its_inner_boundary():
    pairs = align_boundaries(piece_ends(ORIGINAL), piece_ends(EXTENDED)).tolist()
    assert pairs == sorted([list(pair) for pair in SIMILAR] + [[3, 2], [6, 3]])


def test_thesis_pairs_for_each_anchor():
    mapping = map_token_sequences(["a", "num", "py", "b"], ["a", "numpy", "b"])
    first, kind = mapping.pairs("first")
    assert first.tolist() == [[0, 0], [1, 1], [3, 2]] and kind.tolist() == [IDENTICAL, MERGED, IDENTICAL]
    assert mapping.pairs("last")[0].tolist() == [[0, 0], [2, 1], [3, 2]]
    assert mapping.pairs("none")[0].tolist() == [[0, 0], [3, 2]]
    assert TokenMapping([], []).pairs("first")[0].shape == (0, 2)


def test_remaining_tokens_and_missing_resynchronisation():
    assert map_token_sequences("abc", "abcde").divergent == [([], [3, 4])]
    assert map_token_sequences("abcde", "abc").divergent == [([3, 4], [])]
    assert map_token_sequences("abx", "cdx", lookahead=1) == TokenMapping([(2, 2)], [([0], [0]), ([1], [1])])
    assert map_token_sequences([], []) == TokenMapping([], [])
    assert map_token_sequences("wxab", "ab") == TokenMapping([(2, 0), (3, 1)], [([0, 1], [])])


def test_lookahead_counts_offsets_up_to_and_including_its_limit():
    original = [*range(100, 120), 7]
    assert map_token_sequences(original, [7], lookahead=20).similar == [(20, 0)]
    assert map_token_sequences(original, [7], lookahead=19).similar == []


def test_readings_of_smallest_offset_differ_where_the_text_repeats_a_token():
    original = ["df", ".", "group", "by", "(", "by", "="]
    extended = ["df", ".", "groupby", "(", "by", "="]
    ends = piece_ends(original), piece_ends(extended)
    wrong = {o: wrong_pairs(map_token_sequences(original, extended, order=o), *ends) for o in ORDERS}
    assert wrong == {"sum": [(3, 4)], "original": [(3, 4)], "extended": []}


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30), st.sampled_from(ORDERS))
def test_mapping_covers_each_position_once(left, right, order):
    mapping = map_token_sequences(left, right, lookahead=5, order=order)
    assert all(left[i] == right[j] for i, j in mapping.similar)
    used_left = [i for i, _ in mapping.similar] + [i for a, _ in mapping.divergent for i in a]
    used_right = [j for _, j in mapping.similar] + [j for _, b in mapping.divergent for j in b]
    assert sorted(used_left) == list(range(len(left))) and sorted(used_right) == list(range(len(right)))


@given(st.lists(st.integers(0, 2), max_size=14), st.lists(st.integers(0, 2), max_size=14))
def test_resynchronisation_takes_the_smallest_sum(left, right):
    mapping = map_token_sequences(left, right, lookahead=20)
    parted = next((k for k, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    if parted is None:
        return
    later = [
        (i + j, i, j)
        for i, j in itertools.product(range(len(left) - parted), range(len(right) - parted))
        if left[parted + i] == right[parted + j]
    ]
    if later:
        _, d, e = min(later)
        assert mapping.divergent[0] == (list(range(parted, parted + d)), list(range(parted, parted + e)))


@pytest.mark.parametrize("bad", [{"lookahead": 0}, {"order": "largest"}])
def test_mapping_refuses_bad_options(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        map_token_sequences([1], [2], **bad)


# --- the exact rule on byte ends ------------------------------------------------------------------------------

cut_points = st.sets(st.integers(1, 60)).map(lambda cuts: sorted({*cuts, 60}))


@given(cut_points, cut_points, st.integers(0, 10**9))
def test_boundaries_equal_the_naive_double_loop(left, right, offset):
    left, right = [end + offset for end in left], [end + offset for end in right]
    assert align_boundaries(left, right).tolist() == naive_pairs(left, right)


def test_boundaries_far_apart_use_no_table():
    left, right = [1, 10**15, 10**16], [1, 10**15 + 1, 10**16]
    assert align_boundaries(left, right).tolist() == [[0, 0], [2, 2]]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([0, 3, 5], [3, 5], [[1, 0], [2, 1]]),  # BOS on the original side only
        ([3, 5], [0, 5], [[1, 1]]),  # BOS on the extended side only
        ([3, 5, 5], [5], [[1, 0]]),  # EOS on one side only: the text token keeps its partner
        ([3, 5, 5], [5, 5], [[1, 0], [2, 1]]),
        ([0, 0, 3], [0, 0, 3], [[0, 0], [1, 1], [2, 2]]),
        ([], [], []),
        ([], [3], []),
        ([0], [0], [[0, 0]]),
    ],
)
def test_repeated_ends_are_specials(left, right, expected):
    assert align_boundaries(left, right).tolist() == expected


def test_specials_are_paired_by_id_when_ids_are_known():
    pairs = align_boundaries([0, 0, 3, 3], [0, 3, 3], [90, 91, 1, 92], [91, 1, 92])
    assert pairs.tolist() == [[1, 0], [2, 1], [3, 2]]
    assert align_boundaries([0, 3], [0, 3], [90, 1], [91, 1]).tolist() == [[1, 1]]


@pytest.mark.parametrize("bad", [[3, 2], [-1, 2], [[1], [2]]])
def test_ends_must_rise(bad):
    with pytest.raises(ValueError, match="rising"):
        align_boundaries(bad, [1, 2])


def test_ids_and_ends_must_agree():
    with pytest.raises(ValueError, match="1 ids and 2 byte ends"):
        align_boundaries([1, 2], [1, 2], [5], [5, 6])


def test_first_divergence():
    assert first_divergence([1, 2, 3], [1, 2, 4]) == 2
    assert first_divergence([1, 2], [1, 2]) == 2
    assert first_divergence([1, 2, 3], [1, 2]) == 2
    assert first_divergence([9, 1], [1]) == 0
    assert first_divergence([], []) == 0


# --- bytes behind tokens --------------------------------------------------------------------------------------


def normalised(tokenizer, text: str) -> bytes:
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return text.replace("\u2581", " ").encode()


@pytest.mark.parametrize("family", ["byte-level", "digits", "nfc", "sentencepiece"])
@given(text=st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_byte_ends_count_the_normalised_text(family, text):
    tokenizer = original(family)
    ids = tokenizer.encode(text, add_special_tokens=False)
    table = byte_table(tokenizer)
    assert b"".join(table.pieces[index] for index in ids) == normalised(tokenizer, text)
    ends = byte_ends(tokenizer, ids)
    assert ends.dtype == np.int64 and ends.shape == (len(ids),)
    assert (int(ends[-1]) if ids else 0) == len(normalised(tokenizer, text))


@cache
def original(family: str) -> PreTrainedTokenizerFast:
    return make_tokenizer(family)


def test_byte_ends_inside_a_character():
    tokenizer = original("byte-level")
    ids = tokenizer.encode("⭢", add_special_tokens=False)
    assert len(ids) == 3  # one character, three tokens: characters could not tell them apart
    assert byte_ends(tokenizer, ids).tolist() == [1, 2, 3]


def test_nfc_text_counts_composed_characters():
    tokenizer = original("nfc")
    ids = tokenizer.encode("e\u0301x", add_special_tokens=False)
    assert byte_ends(tokenizer, ids)[-1] == len("éx".encode()) == 3


def test_specials_are_zero_wide_and_added_tokens_are_not():
    pair = extension("added:byte-level")
    tokenizer = pair.tokenizer
    ids = [tokenizer.convert_tokens_to_ids(token) for token in ("<|begin|>", "groupby", "<|end|>", "🙂 日")]
    assert byte_ends(tokenizer, ids).tolist() == [0, 7, 7, 7 + len("🙂 日".encode())]


def test_table_follows_a_tokenizer_that_grows():
    tokenizer = make_tokenizer("byte-level")
    before = len(byte_table(tokenizer).lengths)
    tokenizer.add_tokens([AddedToken("zzz", normalized=False)])
    assert len(byte_table(tokenizer).lengths) == before + 1
    assert byte_table(tokenizer) is byte_table(tokenizer)


def test_padding_rows_are_refused():
    tokenizer = original("byte-level")
    with pytest.raises(ValueError, match=r"token id 5000 is not in the tokenizer"):
        byte_ends(tokenizer, [1, 5000])
    with pytest.raises(ValueError, match=r"token id -100 is not"):
        byte_ends(tokenizer, [-100])


def test_other_model_types_are_refused_by_name():
    unigram = Tokenizer(models.Unigram([("a", -1.0)], unk_id=0))
    wordpiece = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    for tokenizer, name in ((unigram, "Unigram"), (wordpiece, "WordPiece")):
        with pytest.raises(ValueError, match=name):
            byte_table(tokenizer)
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="neither byte-level nor"):
        byte_table(words)
    with pytest.raises(ValueError, match="no fast backend"):
        byte_table(SimpleNamespace())


# --- whole texts ----------------------------------------------------------------------------------------------


def spelled(tokenizer, ids) -> bytes:
    """Bytes of a token prefix, as the original tokenizer would read its text: the naive way, without ends."""
    table = byte_table(tokenizer)
    raw = b"".join(table.pieces[index] for index in ids)
    if table.family.rewrites:
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
    if family_of(pair.original).segment_prefix != "none":
        return  # a space before or after an added token: the sides do not spell the same bytes
    for i, j in found.boundaries.tolist():
        left, right = (
            spelled(t, ids)
            for t, ids in ((pair.original, found.original_ids[: i + 1]), (pair.tokenizer, found.extended_ids[: j + 1]))
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
    for batch_size in (1, 3, 1024):
        for text, found in zip(texts, align_texts(pair, texts, batch_size=batch_size), strict=True):
            single = align_text(pair, text)
            for field in ("original_ids", "extended_ids", "original_ends", "extended_ends", "boundaries", "groups"):
                np.testing.assert_array_equal(getattr(found, field), getattr(single, field))
    assert align_texts(pair, []) == []


def test_no_new_token_means_identity():
    pair = SimpleNamespace(original=original("byte-level"), tokenizer=make_tokenizer("byte-level"))
    for text in STRESS:
        found = align_text(pair, text)
        steps = np.arange(len(found.original_ids))
        assert found.boundaries.tolist() == np.stack([steps, steps], axis=1).tolist()
        assert found.first_divergence == len(steps) and not len(found.groups)
        assert not found.kind.any()


def test_kinds_groups_and_anchors_of_a_merged_span():
    pair = extension("added:byte-level")
    found = align_text(pair, "x.groupby")
    table = byte_table(pair.original)
    subtokens = pair.original.encode("groupby", add_special_tokens=False)
    start = len(found.original_ids) - len(subtokens)
    assert b"".join(table.pieces[k] for k in found.original_ids[start:]) == b"groupby"
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
    left = byte_table(pair.original).pieces[found.original_ids[found.boundaries[-tail - 1, 0]]]
    assert left != b"y"


def test_sentencepiece_space_after_an_added_token_shifts_nothing():
    pair = extension("added:sentencepiece")
    found = align_text(pair, "x groupby y groupby(z) numpy")
    assert len(found.extended_ids) and found.original_ends[-1] == found.extended_ends[-1]
    table = byte_table(pair.original)
    for (i, j), kind in zip(found.boundaries.tolist(), found.kind.tolist(), strict=True):
        if kind == IDENTICAL:
            assert table.pieces[found.original_ids[i]] == table.pieces[found.extended_ids[j]]
    assert (found.kind == MERGED).sum() >= 3


def test_equal_totals_do_not_hide_a_missing_and_an_extra_space():
    """A text that begins with a new token lacks a space, and has one too many behind the next one."""
    pair = with_added("sentencepiece", ("zqw",))
    text = "zqwzqw据 . 文"
    found = align_text(pair, text)
    spelt = pair.original.convert_ids_to_tokens(found.original_ids)
    assert spelt[:7] == ["\u2581", "<0x7A>", "<0x71>", "<0x77>", "<0x7A>", "<0x71>", "<0x77>"]
    assert pair.tokenizer.convert_ids_to_tokens(found.extended_ids[:4]) == ["zqw", "zqw", "\u2581", "<0xE6>"]
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
    assert byte_table(tokenizer).family is family_of(tokenizer)


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
        lambda: byte_table(tokenizer),
        lambda: align_text(SimpleNamespace(original=tokenizer, tokenizer=tokenizer), "x"),
        lambda: extend_tokenizer(tokenizer, ["groupby"]),
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
    counts = summarize(align_texts(pair, texts))
    assert counts["texts"] == 3 and counts["texts_that_diverge"] == 2
    assert counts["bytes"] == sum(len(text.encode()) for text in texts)
    assert counts["merged_pairs"] == 2
    assert counts["groups_of_one_new_token"] == 1  # before `numpy` the space became a token of its own
    assert counts["original_tokens"] - counts["original_unpaired"] == counts["identical_pairs"] + 2
    assert counts["extended_unpaired"] == 1
    assert summarize([])["texts"] == 0 and summarize([])["share_saved"] == 0


def test_lookahead_check_finds_wrong_and_missed_pairs():
    from vocabx_utils.vocabulary.resync import WrongPair, check_lookahead

    words = ["df", ".", "group", "by", "(", "=", "groupby"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    left, right = ([words.index(w) for w in s.split()] for s in ("df . group by ( by =", "df . groupby ( by ="))
    aligned = align_ids(SimpleNamespace(original=tokenizer, tokenizer=tokenizer), left, right)
    checks = [check_lookahead([aligned, aligned], order=order) for order in ("sum", "extended")]
    assert checks[0].wrong == (WrongPair(0, 3, 4, 5), WrongPair(1, 3, 4, 5))
    assert (checks[0].texts, checks[0].missed, checks[1].wrong, checks[1].missed) == (2, 4, (), 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("strategy", ["added", "merges"])
def test_extensions_made_by_the_package_align(family, strategy):
    if strategy == "added" and family == "prefix-space":
        pytest.skip("a space before every stretch of text: refused, see test_extend")
    pair = extend_tokenizer(make_tokenizer(family), ["groupby", " groupby", "numpy"], strategy=strategy)
    for text in (*STRESS, *LINES[:4]):
        check_alignment(SimpleNamespace(original=pair.original, tokenizer=pair.tokenizer, name=family), text)
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
