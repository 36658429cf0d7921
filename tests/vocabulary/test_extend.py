"""Extending: nothing old moves, everything new is reachable, every text comes back."""

from __future__ import annotations

import inspect
import json
import random
import textwrap
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fixtures.small_tokenizers import rules
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary import surgery
from vocabx_utils.vocabulary.audit import UNICODE_STRESS
from vocabx_utils.vocabulary.checks import round_trip_failures
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.extend import add_tokens, extend_as_thesis, extend_tokenizer
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.proposals import FewerTokensWarning, select_tokens
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension, load_extension

STRATEGIES = ("merges", "added")


def extended(tokenizer: PreTrainedTokenizerFast, texts: list[str], strategy: Any) -> Extension:
    if (id(tokenizer), strategy) not in _made:
        proposals = select_tokens(
            texts, tokenizer, 60, strategy=strategy, options=TokenOptions(min_count=3, fresh_vocab_size=2000)
        )
        _made[id(tokenizer), strategy] = add_tokens(tokenizer, proposals, strategy=strategy)
    return _made[id(tokenizer), strategy]


_made: dict[tuple[int, Any], Extension] = {}  # the tokenizers live as long as the session


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    tokenizer = request.getfixturevalue("tokenizer") if "tokenizer" in request.fixturenames else None
    if request.param == "added" and tokenizer and spelling_of(tokenizer).segment_prefix == "unless_space":
        pytest.skip("refused, see test_added_is_refused_where_text_would_not_come_back")
    return request.param


def pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(encode_all(tokenizer, [text])[0])


def expand(extension: Extension, ids: list[int]) -> list[int]:
    """Put the subtokens back in place of new tokens."""
    parts = {t.id: t.subtokens for t in extension.tokens}
    return [old for i in ids for old in parts.get(i, (i,))]


# --- what must not change ----------------------------------------------------------------------------------


@cache
def ten_thousand_lines() -> list[str]:
    modules = [textwrap, json.decoder, json.encoder, inspect, random, pytest, argparse_module()]
    lines = [line for m in modules for line in inspect.getsource(m).splitlines()]
    rng = random.Random(0)
    while len(lines) < 10_000:  # further lines by recombination of words
        one, other = rng.choice(lines).split(" "), rng.choice(lines).split(" ")
        lines.append(" ".join(one[: len(one) // 2] + other[len(other) // 2 :]))
    return lines[:10_000]


def argparse_module() -> Any:
    import argparse

    return argparse


def test_lines_without_new_tokens_keep_their_ids(tokenizer: Any, domain: list[str]) -> None:
    """B16: and in lines with new tokens, their subtokens are exactly what stood there before."""
    extension = extended(tokenizer, domain, "merges")
    lines = ten_thousand_lines()
    before, after = encode_all(tokenizer, lines), encode_all(extension.extended, lines)
    untouched = [k for k, ids in enumerate(after) if not any(i >= extension.V for i in ids)]
    assert len(untouched) > 2_000
    assert all(before[k] == after[k] for k in untouched)
    if not spelling_of(tokenizer).ignores_merges:  # there a whole pre-token may be taken without its merges
        assert all(expand(extension, a) == b for a, b in zip(after, before, strict=True))


def test_original_merges_and_ids_stay(tokenizer: Any, domain: list[str]) -> None:
    """B16."""
    extension = extended(tokenizer, domain, "merges")
    old, new = (json.loads(t.backend_tokenizer.to_str())["model"] for t in (tokenizer, extension.extended))
    assert new["merges"][: len(old["merges"])] == old["merges"]
    vocab = extension.extended.get_vocab()
    assert all(vocab[piece] == i for piece, i in tokenizer.get_vocab().items())


def test_new_ids_follow_the_old_ones(tokenizer: Any, domain: list[str], strategy: str) -> None:
    extension = extended(tokenizer, domain, strategy)
    assert max(tokenizer.get_vocab().values()) + 1 == extension.V
    assert [t.id for t in extension.tokens] == list(extension.new_ids)
    assert max(extension.extended.get_vocab().values()) == extension.V + extension.N - 1


def test_two_save_and_load_cycles(tokenizer: Any, domain: list[str], strategy: str, tmp_path: Path) -> None:
    """B18, and the trap of Qwen's layout: special tokens that are only added tokens must not move."""
    extension = extended(tokenizer, domain, strategy)
    extension.save(tmp_path / "one")
    once = load_extension(tmp_path / "one")
    once.save(tmp_path / "two")
    twice = load_extension(tmp_path / "two")
    for loaded in (once, twice):
        assert rules(loaded.extended) == rules(extension.extended)
        assert loaded.tokens == extension.tokens and loaded.V == extension.V
        for token in json.loads(tokenizer.backend_tokenizer.to_str())["added_tokens"]:
            assert loaded.extended.convert_tokens_to_ids(token["content"]) == token["id"]
            assert encode_all(loaded.extended, [f"a {token['content']}b"])[0].count(token["id"]) == 1
        assert loaded.extended.special_tokens_map == tokenizer.special_tokens_map
        assert loaded.extended.all_special_ids == tokenizer.all_special_ids
    files = [(tmp_path / n / "extended" / "tokenizer.json").read_text() for n in ("one", "two")]
    assert files[0] == files[1]


def test_round_trips_equal_the_original_ones(tokenizer: Any, domain: list[str], strategy: str) -> None:
    extension = extended(tokenizer, domain, strategy)
    texts = [*UNICODE_STRESS, *domain[:100]]
    texts += [f"{t.text}(x) a{t.text}, {t.text}{t.text} b\n{t.text}" for t in extension.tokens]
    assert not round_trip_failures(extension, texts)
    normalises = tokenizer.backend_tokenizer.normalizer is not None
    if not normalises and spelling_of(tokenizer).kind == "byte-level":
        ids = encode_all(extension.extended, texts)
        assert extension.extended.backend_tokenizer.decode_batch(ids, skip_special_tokens=False) == texts


# but the two noncharacters that fence added tokens of a SentencePiece-style tokenizer while a text is decoded
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufdd0\ufdd1"), max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back(base_tokenizers: dict[str, Any], text: str) -> None:
    for name in ("smollm", "qwen", "llama2"):
        for how in STRATEGIES:
            if (name, how) not in _ready:
                words = [" groupby", "groupby", *(["đem"] if (name, how) != ("llama2", "merges") else [])]
                _ready[name, how] = add_tokens(base_tokenizers[name], words, how)
            extension = _ready[name, how]
            around = f"{text} groupby{text}(đem){text}"
            assert not round_trip_failures(extension, [text, around])


_ready: dict[tuple[str, str], Extension] = {}


def test_order_of_proposals_does_not_matter(tokenizer: Any, domain: list[str], strategy: str) -> None:
    proposals = select_tokens(
        domain, tokenizer, 40, strategy=strategy, options=TokenOptions(min_count=3, fresh_vocab_size=2000)
    )
    texts = ["frobnicator", " frobnicator", "zzyzzyx"]
    mixed = [*proposals, *texts, texts[0]]
    expected = add_tokens(tokenizer, mixed, strategy)
    for seed in range(3):
        shuffled = random.Random(seed).sample(mixed, len(mixed))
        other = add_tokens(tokenizer, shuffled, strategy)
        assert other.tokens == expected.tokens and rules(other.extended) == rules(expected.extended)


def test_a_part_of_the_proposals_is_enough(smollm_like: Any, domain: list[str]) -> None:
    """Merges whose parts were not passed on are made up for."""
    proposals = select_tokens(domain, smollm_like, 80, options=TokenOptions(min_count=3))
    longest = max(proposals, key=lambda p: len(p.subtokens))
    assert len(longest.subtokens) > 2
    extension = add_tokens(smollm_like, [longest])
    assert [t.text for t in extension.tokens if t.wanted] == [longest.text]
    assert len(pieces(extension.extended, longest.text)) == 1


# --- the cases ---------------------------------------------------------------------------------------------


def word_and_inner_part(tokenizer: Any, spaced: bool) -> tuple[str, str]:
    """A word that is an original token, and a part of it that is none (with its space, if `spaced`)."""
    vocab = tokenizer.get_vocab()
    for piece in sorted(vocab, key=len, reverse=True):
        word = piece.removeprefix("Ġ")
        part = word[:-1] if spaced else word[1:-1]
        if piece != word and word.isalpha() and part not in vocab and f"Ġ{part}" not in vocab:
            return f" {word}", f" {part}" if spaced else part
    raise AssertionError("no such word")


def test_b01_an_added_token_does_not_split_longer_words(smollm_like: Any, strategy: str) -> None:
    word, part = word_and_inner_part(smollm_like, spaced=False)
    extension = add_tokens(smollm_like, [part], strategy)
    text = f"a{word} thing,{word}{part} x{part}"
    if strategy == "added":
        assert encode_all(extension.extended, [text]) == encode_all(smollm_like, [text])
    assert encode_all(extension.extended, [word]) == encode_all(smollm_like, [word])
    assert any(i >= extension.V for i in encode_all(extension.extended, [f"({part})"])[0])


def test_b01_no_old_word_is_cut_by_chosen_tokens(tokenizer: Any, domain: list[str]) -> None:
    extension = extended(tokenizer, domain, "merges")
    spelling = spelling_of(tokenizer)
    words = [spelling.raw_of(i).decode("utf-8", "replace") for i in set(spelling.pieces) - spelling.added_ids]
    before, after = encode_all(tokenizer, words), encode_all(extension.extended, words)
    one_token = [k for k, ids in enumerate(before) if len(ids) == 1]
    assert all(before[k] == after[k] for k in one_token)


def test_b01_what_would_cut_a_word_with_its_space_is_refused(smollm_like: Any) -> None:
    _, part = word_and_inner_part(smollm_like, spaced=True)
    with pytest.raises(TokenizerError, match="substrings of original tokens"):
        add_tokens(smollm_like, [part], "added")


@pytest.mark.parametrize("spelling", ["Ġgroupby", " groupby"])
def test_b02_a_marked_word_is_its_leading_space_form(smollm_like: Any, spelling: str, strategy: str) -> None:
    extension = add_tokens(smollm_like, [spelling], strategy)
    wanted = next(t for t in extension.tokens if t.wanted)
    ids = encode_all(extension.extended, ["x groupby y"])[0]
    assert wanted.text == " groupby" and ids.count(wanted.id) == 1
    assert ids[-len(pieces(smollm_like, " y")) :] == encode_all(smollm_like, [" y"])[0]
    assert bool(extension.report["notes"]) == spelling.startswith("Ġ")


@pytest.mark.parametrize("spelling", ["▁groupby", " groupby"])
def test_b02_in_the_sentencepiece_family(base_tokenizers: Any, spelling: str, strategy: str) -> None:
    extension = add_tokens(base_tokenizers["llama2"], [spelling], strategy)
    wanted = next(t for t in extension.tokens if t.wanted)
    assert encode_all(extension.extended, ["x groupby y"])[0].count(wanted.id) == 1


def test_b03_space_and_bare_forms_side_by_side(tokenizer: Any, strategy: str) -> None:
    extension = add_tokens(tokenizer, ["dignum", " dignum"], strategy)
    ids = {t.text: t.id for t in extension.tokens}
    spaced = encode_all(extension.extended, ["value in dignum dollars"])[0]
    assert ids[" dignum"] in spaced and ids["dignum"] not in spaced
    assert ids["dignum"] in encode_all(extension.extended, ["(dignum)"])[0]
    if spelling_of(tokenizer).segment_prefix == "none" or strategy == "merges":
        after = encode_all(tokenizer, ["x dollars"])[0][len(encode_all(tokenizer, ["x"])[0]) :]
        assert spaced[-len(after) :] == after
        assert len(spaced) < len(encode_all(tokenizer, ["value in dignum dollars"])[0])


def test_b03_a_bare_word_leaves_running_text_alone_in_merges(smollm_like: Any) -> None:
    extension = add_tokens(smollm_like, ["dignum"])
    text = ["value in dignum dollars"]
    assert " dignum" not in [t.text for t in extension.tokens]
    assert expand(extension, encode_all(extension.extended, text)[0]) == encode_all(smollm_like, text)[0]


@pytest.mark.parametrize("word", ["đem", "ilÖveyou", "Ċĉ", "naïveté", "Ã©", "ÿ", " łódź", "¡olé"])
def test_b08_letters_that_are_byte_symbols(tokenizer: Any, word: str, strategy: str) -> None:
    try:
        extension = add_tokens(tokenizer, [word], strategy)
    except TokenizerError as error:  # some are cut by the pre-tokenizer, some are tokens or pieces already
        assert any(p in str(error) for p in ("cannot cross", "already", "Spelt like", "cannot become"))
        return
    texts = [f"a {word} b", word, f"({word})", f"{word}{word}"]
    assert any(i >= extension.V for ids in encode_all(extension.extended, texts) for i in ids)
    assert not round_trip_failures(extension, texts)


def test_b09_new_tokens_survive_skip_special_tokens(tokenizer: Any, strategy: str) -> None:
    extension = add_tokens(tokenizer, [" groupby"], strategy)
    ids = extension.extended("x groupby y")["input_ids"]
    assert "groupby" in extension.extended.decode(ids, skip_special_tokens=True)
    added = json.loads(extension.extended.backend_tokenizer.to_str())["added_tokens"]
    new = [t for t in added if t["id"] >= extension.V]
    assert all(not t["special"] and t["normalized"] == spelling_of(tokenizer).rewrites for t in new)
    assert len(new) == (1 if strategy == "added" else 0)
    assert not set(extension.extended.all_special_ids) & set(extension.new_ids)


# --- strategy `added` ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["metaspace", "byte-level"])
def test_added_is_refused_where_text_would_not_come_back(base_tokenizers: Any, domain: list[str], kind: str) -> None:
    """A space before every stretch that has none: `f(x)` with a new token f would come back as `f (x)`."""
    tokenizer = base_tokenizers["metaspace"]
    if kind == "byte-level":
        backend = Tokenizer.from_str(base_tokenizers["smollm"].backend_tokenizer.to_str())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    for attempt in (
        lambda: add_tokens(tokenizer, ["zqw"], "added"),
        lambda: select_tokens(domain, tokenizer, 5, strategy="added"),
    ):
        with pytest.raises(TokenizerError, match=r"would come back as `f \(x\)`. Use strategy 'merges'"):
            attempt()
    assert add_tokens(tokenizer, ["zqw"]).N


@pytest.mark.parametrize("how", STRATEGIES)
def test_a_decomposed_token_is_read_in_its_composed_form(base_tokenizers: Any, how: Any) -> None:
    extension = add_tokens(base_tokenizers["qwen"], ["zqcafe\u0301"], how)
    wanted = next(t for t in extension.tokens if t.wanted)
    assert wanted.text == "zqcaf\u00e9" and "normaliser" in extension.report["notes"][0]
    for text in ("(zqcaf\u00e9)", "(zqcafe\u0301)"):
        assert wanted.id in encode_all(extension.extended, [text])[0]
        assert not round_trip_failures(extension, [text])


def test_a_mark_behind_an_added_token_still_joins_its_letter(base_tokenizers: Any) -> None:
    """NFC reads `y` and a mark as one letter, also where the `y` ends an added token."""
    extension = add_tokens(base_tokenizers["qwen"], ["numpy"], "added")
    text = "numpy\u0301 numpy"
    assert not round_trip_failures(extension, [text])
    assert encode_all(extension.extended, [text])[0].count(extension.V) == 1


def test_leftmost_then_longest_added_token_wins(smollm_like: Any) -> None:
    extension = add_tokens(smollm_like, ["zqw", "zqwxk", "xkjj"], "added")
    ids = {t.text: t.id for t in extension.tokens}
    new = [i for i in encode_all(extension.extended, ["zqwxkjj zqwx"])[0] if i >= extension.V]
    assert new == [ids["zqwxk"], ids["zqw"]]


def test_tokens_that_keep_text_from_coming_back_are_named(base_tokenizers: Any, monkeypatch: Any) -> None:
    """Without the fences of its decoder, a SentencePiece tokenizer shows a space behind every added token."""
    monkeypatch.setattr(surgery, "_decoder_for_added", lambda spelling, texts: spelling.layout["decoder"])
    with pytest.raises(TokenizerError, match="Text with 'zqw' does not come back"):
        add_tokens(base_tokenizers["llama2"], ["zqw"], "added")


# --- tokens for training -----------------------------------------------------------------------------------


def test_every_token_is_in_the_training_texts(smollm_like: Any, domain: list[str], strategy: Any) -> None:
    chosen_on, training = domain[::2], domain[1::2]
    made = extend_tokenizer(smollm_like, chosen_on, 50, strategy, training_texts=training, min_train_count=10)
    assert made.N == 50 and min(made.count(training).values()) >= 10
    plain = add_tokens(smollm_like, select_tokens(chosen_on, smollm_like, 50, strategy=strategy), strategy)
    assert min(plain.count(training).values()) < 10 and made.report["too_rare_in_training"]


def test_without_training_texts_each_token_is_in_the_texts(smollm_like: Any, domain: list[str], strategy: Any) -> None:
    options = TokenOptions(min_files=2, exclude=frozenset([" node"]))
    made = extend_tokenizer(smollm_like, domain, 30, strategy, options)
    assert made.N == 30 and min(made.count(domain).values()) >= 4
    assert " node" not in {token.text for token in made.tokens}
    assert made.tokens == extend_tokenizer(smollm_like, domain, 30, strategy, options, training_texts=domain).tokens


def test_texts_may_come_from_generators(smollm_like: Any, domain: list[str], strategy: Any) -> None:
    listed = extend_tokenizer(smollm_like, domain, 12, strategy, training_texts=domain[:200])
    made = extend_tokenizer(smollm_like, iter(domain), 12, strategy, training_texts=iter(domain[:200]))
    assert made.tokens == listed.tokens and listed.N == 12


def test_more_tokens_than_the_training_texts_support(smollm_like: Any, domain: list[str], strategy: Any) -> None:
    texts, training = domain[:40], domain[40:60]
    with pytest.raises(TokenizerError, match=r"900 new tokens were asked for; the texts offer \d+") as caught:
        extend_tokenizer(smollm_like, texts, 900, strategy, training_texts=training)
    offered = int(str(caught.value).split("offer ")[1].split()[0])
    made = extend_tokenizer(smollm_like, texts, offered, strategy, training_texts=training)
    assert made.N == offered > 0


def test_a_number_that_was_not_tried_is_a_limit(smollm_like: Any, domain: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("vocabx_utils.vocabulary.extend._TRIES", 0)
    with pytest.raises(TokenizerError, match=r"the texts offer at most \d+ that occur"):
        extend_tokenizer(smollm_like, domain[:40], 900, training_texts=domain[40:60])


@pytest.mark.parametrize("strategy", ["merges", "added", "phrases"])
def test_texts_may_be_generators(smollm_like: Any, domain: list[str], strategy: Any) -> None:
    by_list = extend_tokenizer(smollm_like, domain, 5, strategy, training_texts=domain)
    both = (text for text in domain), (text for text in domain)
    by_generator = extend_tokenizer(smollm_like, both[0], 5, strategy, training_texts=both[1])
    assert by_generator.tokens == by_list.tokens


def test_text_in_place_of_texts_and_a_strategy_in_place_of_a_number_are_refused(smollm_like: Any) -> None:
    with pytest.raises(TokenizerError, match="texts is one string of 5 characters"):
        extend_tokenizer(smollm_like, "a b c", 1)
    with pytest.raises(TokenizerError, match="training_texts is one string of 5 characters"):
        extend_tokenizer(smollm_like, ["a b c"], 1, training_texts="a b c")
    with pytest.raises(TokenizerError, match="n is 'added'; expected 1 or more"):
        extend_tokenizer(smollm_like, ["a b c"], "added")  # type: ignore[arg-type]


# --- bad input ---------------------------------------------------------------------------------------------


def test_no_new_tokens_is_a_plain_copy(tokenizer: Any, strategy: str) -> None:
    extension = add_tokens(tokenizer, [], strategy)
    assert extension.N == 0 and "id" in extension.table().columns
    assert encode_all(extension.extended, UNICODE_STRESS) == encode_all(tokenizer, UNICODE_STRESS)


def test_a_token_that_is_there_already_is_refused(tokenizer: Any, strategy: str) -> None:
    old = next(
        spelling_of(tokenizer).raw_of(i).decode()
        for p, i in sorted(tokenizer.get_vocab().items())
        if p.isascii() and p.isalpha() and len(p) > 3
    )
    with pytest.raises(TokenizerError, match=f"has '{old}' already"):
        add_tokens(tokenizer, [" groupby", old], strategy)


def test_special_tokens_are_there_already(tokenizer: Any, strategy: str) -> None:
    with pytest.raises(TokenizerError, match="already"):
        add_tokens(tokenizer, [tokenizer.eos_token], strategy)


@pytest.mark.parametrize("bad", [[""], [3], [None]])
def test_what_is_no_text_is_refused(smollm_like: Any, bad: Any, strategy: str) -> None:
    with pytest.raises(TokenizerError, match="expected text"):
        add_tokens(smollm_like, bad, strategy)


@pytest.mark.parametrize("strategy", ["merges", "added", "phrases"])
def test_half_a_character_is_refused_in_tokens_and_in_texts(smollm_like: Any, domain: list[str], strategy: Any) -> None:
    with pytest.raises(TokenizerError, match=r"the proposed token .* half of a surrogate pair"):
        add_tokens(smollm_like, ["fine", "half\ud800"], strategy)
    with pytest.raises(TokenizerError, match=r"text 1 holds .* half of a surrogate pair"):
        extend_tokenizer(smollm_like, [domain[0], "half \ud800", *domain[1:]], 1, strategy)


@pytest.mark.parametrize("strategy", ["added", "phrases"])
def test_a_token_spelt_like_a_padding_row_is_refused(smollm_like: Any, strategy: Any) -> None:
    with pytest.raises(TokenizerError, match=r"'\[PAD12\]': spelt like the entries of GGUF files"):
        add_tokens(smollm_like, ["fine", "[PAD12]"], strategy)
    assert add_tokens(smollm_like, ["[PADDED]"], strategy).N == 1


def test_one_string_is_not_a_list_of_tokens(smollm_like: Any) -> None:
    with pytest.raises(TokenizerError, match="expected a list"):
        add_tokens(smollm_like, "groupby")


def test_unknown_strategy(smollm_like: Any) -> None:
    with pytest.raises(TokenizerError, match="expected 'added' or 'merges'"):
        add_tokens(smollm_like, ["groupby"], "special")  # type: ignore[arg-type]


def test_merges_cannot_cross_the_pre_tokenizer(base_tokenizers: Any) -> None:
    for name in ("smollm", "qwen", "llama3", "gpt4"):
        with pytest.raises(TokenizerError, match=r"'df.groupby\(' is cut into"):
            add_tokens(base_tokenizers[name], ["df.groupby("])
        extension = add_tokens(base_tokenizers[name], ["df.groupby("], "added")
        assert extension.V in encode_all(extension.extended, ["x = df.groupby(y)"])[0]


def test_time_grows_with_the_number_of_added_tokens_and_not_with_its_square(smollm_like: Any, tmp_path: Path) -> None:
    """Extended, saved and loaded; both sizes in this process, so that a slow machine is slow for both."""
    letters = "bcdfghjklmnpqrstvwxz"
    words = [f"{' ' * (k % 2)}zq{a}{b}{c}" for k, a in enumerate(letters) for b in letters for c in letters]

    def spent(n: int) -> float:
        start = time.process_time()
        add_tokens(smollm_like, words[-n:], "added").save(tmp_path / str(n))
        loaded = load_extension(tmp_path / str(n))
        assert len(loaded.tokens) == n
        return time.process_time() - start

    assert spent(4_000) < 8 * spent(1_000)  # four times the tokens: 4 at most where linear, 16 where quadratic


def test_a_small_corpus_gives_the_thesiss_choice_the_tokens_it_has(smollm_like: Any) -> None:
    texts = ["zebra(zebra) + quokka * quokka"] * 4
    with pytest.warns(FewerTokensWarning, match=r"offers \d+ new tokens .* 800 were asked for"):
        made = extend_as_thesis(smollm_like, texts)
    assert 0 < made.N < 800 and made.strategy == "added"
    assert extend_as_thesis(smollm_like, texts, 1).N == 1
