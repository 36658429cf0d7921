"""Phrase dropout: what is left apart is the original tokenizer's, and the draw depends on the text alone."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fixtures.alignment_tokenizers import FAMILIES, LINES, with_added, with_merges
from tiny import new_tokens, texts, tiny_model, tokenizers
from training.phase1_parts import aligned, settings
from transformers import PreTrainedTokenizerFast

from vocabx_utils.config import Phase1Config
from vocabx_utils.training.batches import align_batch
from vocabx_utils.training.checks import StepFacts
from vocabx_utils.training.dropout import drop_phrases, spans_of, unmerge
from vocabx_utils.training.examples import choose_windows, whole_texts
from vocabx_utils.training.objectives import parse_objective, parse_variant
from vocabx_utils.training.phase1 import Phase1Training, new_student, prepare
from vocabx_utils.training.teacher import ask_teacher
from vocabx_utils.vocabulary.alignment import AlignedText, align_ids, align_text, align_texts
from vocabx_utils.vocabulary.encoding import byte_ends
from vocabx_utils.vocabulary.extend import add_tokens

V, N = 300, 12
PHRASES = (" if not", "):\n        ", "groupby", " = None", "(x)", ", 1", "e x")
MORE = ["y = None if not x else (x), 1groupby", "NoneType = NoneTypes = None\n", "def f(x):\n        return 1, 12"]
ALL = LINES + MORE


@cache
def extension(name: str) -> SimpleNamespace:
    kind, family = name.split(":")
    return with_added(family, PHRASES) if kind == "phrases" else with_merges(family)


@cache
def extended() -> Any:
    names = tokenizers().extended.convert_ids_to_tokens([token.id for token in new_tokens()])
    return add_tokens(tokenizers().original, [name.replace("Ġ", " ") for name in names])


def first_new(pair: Any) -> int:
    return len(pair.original)


def written_out(text: AlignedText, drawn: list[list[int]]) -> tuple[list[int], list[int]]:
    """Extended ids and the first positions of what was exchanged, a group at a time from behind."""
    ids, starts = text.extended_ids.tolist(), []
    for a, b, c, d in reversed(drawn):
        ids[c:d] = text.original_ids[a:b].tolist()
        starts = [c, *(s + (b - a) - (d - c) for s in starts)]
    return ids, starts


@pytest.mark.parametrize("name", [f"{kind}:{family}" for family in FAMILIES for kind in ("phrases", "merges")])
def test_what_is_left_apart_is_the_originals_and_ends_where_it_ends(name: str) -> None:
    pair = extension(name)
    some = 0
    for text in align_texts(pair, ALL):
        new = spans_of(text, first_new(pair)).tolist()
        for chosen in (new, new[::2], new[1::2], new[:1]):
            if not chosen:
                continue
            found = unmerge(text, np.array(chosen))
            ids, starts = written_out(text, chosen)
            assert found.extended_ids.tolist() == ids and found.unmerged.tolist() == starts
            for (a, b, _, _), start in zip(chosen, starts, strict=True):
                span = slice(start, start + b - a)
                assert np.array_equal(found.extended_ids[span], text.original_ids[a:b])
                assert np.array_equal(found.extended_ends[span], text.original_ends[a:b])
            i, j = found.boundaries.T
            assert np.array_equal(found.original_ends[i], found.extended_ends[j])
            assert (np.diff(found.boundaries, axis=0) > 0).all()
            if "sentencepiece" not in name and "metaspace" not in name and "prefix" not in name:
                again = align_ids(pair, found.original_ids, ids)  # every pair of equal ends, found anew
                assert np.array_equal(again.boundaries, found.boundaries)
                assert np.array_equal(found.extended_ends, byte_ends(pair.extended, ids))
            some += 1
    assert some > 4


@pytest.mark.parametrize("family", FAMILIES)
def test_with_everything_left_apart_only_the_original_text_is_there(family: str) -> None:
    pair = extension(f"phrases:{family}")
    for text, bare in zip(
        align_texts(pair, ALL), drop_phrases(align_texts(pair, ALL), first_new(pair), 1.0), strict=True
    ):
        assert (bare.extended_ids < first_new(pair)).all()
        if not len(bare.groups):  # a space of the tokenizer's own may still differ where nothing new stands
            assert np.array_equal(bare.extended_ids, text.original_ids)
            assert np.array_equal(bare.boundaries[:, 0], np.arange(len(text.original_ids)))


def test_a_neighbour_that_an_added_token_changed_comes_back_too() -> None:
    pair = with_added("byte-level", ("numpy",))
    original: PreTrainedTokenizerFast = pair.original
    text = align_text(pair, "import numpy as np")
    assert original.decode(text.original_ids[:3]).endswith(" num") or len(text.groups) == 1
    (bare,) = drop_phrases([text], first_new(pair), 1.0)
    assert bare.extended_ids.tolist() == original.encode("import numpy as np", add_special_tokens=False)


def test_the_draw_follows_from_seed_and_text_alone() -> None:
    found = aligned()
    apart = drop_phrases(found, V, 0.3, 5)
    backwards = drop_phrases(found[::-1], V, 0.3, 5)[::-1]
    alone = [drop_phrases([text], V, 0.3, 5)[0] for text in found]
    for one, two, three in zip(apart, backwards, alone, strict=True):
        assert np.array_equal(one.extended_ids, two.extended_ids) and np.array_equal(
            one.extended_ids, three.extended_ids
        )
    other = drop_phrases(found, V, 0.3, 6)
    assert any(not np.array_equal(one.extended_ids, two.extended_ids) for one, two in zip(apart, other, strict=True))


def test_the_share_is_met_and_nothing_changes_at_0() -> None:
    found = align_texts(tokenizers(), texts(200))

    def new(some: Any) -> int:
        return sum(int((text.extended_ids >= V).sum()) for text in some)

    assert all(one is two for one, two in zip(found, drop_phrases(found, V, 0.0), strict=True))
    left = [1 - new(drop_phrases(found, V, share)) / new(found) for share in (0.1, 0.3)]
    assert left == pytest.approx([0.1, 0.3], abs=0.04)
    some, more = (drop_phrases(found, V, share) for share in (0.1, 0.3))
    for one, two in zip(some, more, strict=True):  # a larger share leaves apart what a smaller one does
        assert (two.extended_ids >= V).sum() <= (one.extended_ids >= V).sum()


@pytest.mark.parametrize("window", [0, 12])
def test_no_span_that_was_left_apart_is_a_target_at_its_start(window: int) -> None:
    apart = drop_phrases(aligned(), V, 0.5)
    examples = choose_windows(apart, V, N, window=window, limit=60) if window else whole_texts(apart, V, N)
    assert all((e.ids >= V).any() for e in examples.examples) or not window  # windows lie around tokens that stand
    numbers = list(range(len(examples)))
    batch = align_batch(examples, numbers, None)
    learned = {(int(at), int(to)) for at, to in zip(batch.positions, batch.targets, strict=True)}
    width, wanted = batch.ids.shape[1], set()
    for line, example in enumerate(examples.examples):
        source = apart[example.source]
        first = next(
            at
            for at in range(len(source.extended_ids))
            if np.array_equal(source.extended_ids[at : at + len(example.ids)], example.ids)
            and set(source.unmerged[(source.unmerged > at) & (source.unmerged < at + len(example.ids))] - at)
            == set(example.unmerged)
        )
        for at in range(len(example.ids) - 1):
            if first + at + 1 not in source.unmerged:
                wanted.add((line * width + at, int(example.ids[at + 1])))
    assert learned == wanted
    assert sum(len(e.unmerged) for e in examples.examples) > 5
    facts = StepFacts.of(examples, parse_objective("kl_last"))
    assert facts.targets.sum() == len(wanted) == examples.targets
    assert facts.scales(numbers, 1.0)[1] == pytest.approx(1 / len(wanted))


def test_student_and_teacher_still_agree_where_no_new_token_stands_before() -> None:
    base = tiny_model()
    bare = whole_texts(drop_phrases(aligned(), V, 1.0), V, N)
    assert all(len(e.pairs["last"]) == 0 and e.prefix_pairs == len(e.ids) for e in bare.examples)
    with pytest.raises(ValueError, match="free of new tokens"):
        ask_teacher(base, bare)


def test_training_texts_alone_are_changed() -> None:
    base, lines = tiny_model(), texts()
    plain, dropped = (
        prepare(base, extended(), lines, lines, settings(variants=["mean_kl_last"], phrase_dropout=share))
        for share in (0.0, 0.3)
    )
    assert plain.validation.fingerprint() == dropped.validation.fingerprint() == plain.train.fingerprint()
    assert dropped.train.counts().sum() < plain.train.counts().sum()
    assert [len(text.extended_ids) for text in dropped.aligned] == [len(text.extended_ids) for text in plain.aligned]
    assert "phrase_dropout" not in Phase1Config().key()  # keys of older run folders


def test_rows_are_learned_with_it() -> None:
    base = tiny_model()
    config = settings(variants=["mean_kl_last"], phrase_dropout=0.3)
    recipe = parse_variant("mean_kl_last")
    metrics = []
    for _ in range(2):
        data = prepare(base, extended(), texts(), texts(), config)
        training = Phase1Training(recipe, new_student(recipe, base, extended().tokens, config), data, config)
        metrics.append([event.record for event in training.run() if event.record is not None])
    first, second = ([{k: v for k, v in row.items() if k != "seconds"} for row in rows] for rows in metrics)
    assert first == second and first[-1]["kl_last"] < first[0]["kl_last"]
