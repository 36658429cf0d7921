"""Greedy decoding: engines, batch sizes and orders agree; replies end and decode rightly."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from evaluation.evaluation_parts import humaneval_problem, tiny_model
from transformers import PreTrainedTokenizerFast

from vocabx_utils.evaluation import slots
from vocabx_utils.evaluation.decoding import Engine, ReplyReader, completion_text, end_ids, generate, prepare_engine
from vocabx_utils.evaluation.prompts import Prompt, build_prompt
from vocabx_utils.healing import Healer
from vocabx_utils.vocabulary.spelling import spelling_of


def make_prompts(tokenizer: PreTrainedTokenizerFast, count: int) -> list[Prompt]:
    """Prompts of very different lengths, without stop texts."""
    made = []
    for number in range(count):
        ids = [(7 * number + 13 * i) % (len(tokenizer) - 2) + 2 for i in range(1 + (number * 37) % 60)]
        made.append(Prompt(f"HumanEval/{number}", "", tuple(ids), "", False, (), "completion/code"))
    return made


def greedy_by_hand(model: torch.nn.Module, prompt: Prompt, steps: int, usable: int, ends: frozenset[int]) -> list[int]:
    """One prompt, no cache, one full forward pass for each token."""
    ids = list(prompt.ids)
    for _ in range(steps):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1, :usable]
        ids.append(int(logits.argmax()))
        if ids[-1] in ends:
            break
    return ids[len(prompt.ids) :]


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("engine", ["slots", "plain"])
def test_batched_answers_equal_single_ones_without_cache(
    gpt2_like: PreTrainedTokenizerFast, kind: str, engine: Engine
) -> None:
    model = tiny_model(kind, len(gpt2_like) + 11)
    prompts = make_prompts(gpt2_like, 9)
    ends = end_ids(model, gpt2_like)
    expected = [greedy_by_hand(model, prompt, 20, len(gpt2_like), ends) for prompt in prompts]
    replies = generate(model, gpt2_like, prompts, max_new_tokens=20, batch_size=4, engine=engine)
    assert [list(reply.ids) for reply in replies] == expected
    assert all((reply.ids[-1] in ends) == (reply.finish == "eos") for reply in replies)


def test_fifty_problems_do_not_depend_on_batch_size_or_order(gpt2_like: PreTrainedTokenizerFast) -> None:
    model, prompts = tiny_model("llama", len(gpt2_like)), make_prompts(gpt2_like, 50)
    first = generate(model, gpt2_like, prompts, max_new_tokens=24, batch_size=50)
    small = generate(model, gpt2_like, prompts, max_new_tokens=24, batch_size=7)
    backwards = generate(model, gpt2_like, prompts[::-1], max_new_tokens=24, batch_size=16)[::-1]
    assert first == small == backwards


def test_captured_steps_give_the_same(gpt2_like: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of the GPU (fixed lengths, no fewer than 32 slots), with a stand-in for the graph."""
    model, prompts = tiny_model("qwen2", len(gpt2_like)), make_prompts(gpt2_like, 80)
    expected = generate(model, gpt2_like, prompts, max_new_tokens=16, batch_size=80)
    captured = []

    def capture(decoder: slots.SlotDecoder, rows: int, length: int) -> SimpleNamespace:
        captured.append((rows, length))
        decoder.captured[rows, length] = graph = SimpleNamespace(replay=lambda: decoder._step(rows, length))
        return graph

    plain_init = slots.SlotDecoder.__init__
    monkeypatch.setattr(slots.SlotDecoder, "_capture", capture)
    monkeypatch.setattr(
        slots.SlotDecoder, "__init__", lambda self, model, **options: plain_init(self, model, graphs=True, **options)
    )
    assert generate(model, gpt2_like, prompts, max_new_tokens=16, batch_size=64) == expected
    assert len(captured) == len(set(captured)) and all(rows in (64, 32) for rows, _ in captured)


def test_an_engine_can_be_asked_again(gpt2_like: PreTrainedTokenizerFast) -> None:
    model, prompts = tiny_model("qwen2", len(gpt2_like)), make_prompts(gpt2_like, 12)
    expected = generate(model, gpt2_like, prompts, max_new_tokens=16)
    engine = prepare_engine(model, gpt2_like, prompts, 16, batch_size=12)
    for asked in (prompts, prompts[::-1], prompts[:3], prompts):  # slots that were moved are filled anew
        replies = generate(model, gpt2_like, asked, max_new_tokens=16, engine=engine)
        assert replies == [expected[prompts.index(prompt)] for prompt in asked]
    with pytest.raises(ValueError, match="a reply of 900 do not fit into slots of"):
        generate(model, gpt2_like, prompts, max_new_tokens=900, engine=engine)


def test_no_padding_row_is_ever_generated(gpt2_like: PreTrainedTokenizerFast) -> None:
    model = tiny_model("llama", len(gpt2_like) + 200)
    with torch.no_grad():
        model.lm_head.weight[len(gpt2_like) :] *= 100
    for engine in ("slots", "plain"):
        replies = generate(model, gpt2_like, make_prompts(gpt2_like, 4), max_new_tokens=8, engine=engine)
        assert max(max(reply.ids) for reply in replies) < len(gpt2_like)


def test_surplus_rows_of_an_aligned_head_are_never_generated(
    gpt2_like: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts = tiny_model("llama", len(gpt2_like)), make_prompts(gpt2_like, 4)
    expected = generate(model, gpt2_like, prompts, max_new_tokens=8, engine="plain")
    surplus = 100 * torch.randn(60, model.config.hidden_size)
    monkeypatch.setattr(slots, "aligned_rows", lambda rows: torch.cat([rows, surplus]))
    assert generate(model, gpt2_like, prompts, max_new_tokens=8, engine="slots") == expected


def test_a_head_with_a_bias_is_asked_as_it_is(gpt2_like: PreTrainedTokenizerFast) -> None:
    model, prompts = tiny_model("llama", len(gpt2_like)), make_prompts(gpt2_like, 4)
    model.lm_head.bias = torch.nn.Parameter(10 * torch.randn(len(gpt2_like)))
    expected = generate(model, gpt2_like, prompts, max_new_tokens=8, engine="plain")
    assert generate(model, gpt2_like, prompts, max_new_tokens=8, engine="slots") == expected


def test_attention_of_the_model_is_restored(gpt2_like: PreTrainedTokenizerFast) -> None:
    model = tiny_model("llama", len(gpt2_like))
    before = model.config._attn_implementation
    generate(model, gpt2_like, make_prompts(gpt2_like, 2), max_new_tokens=2, engine="slots")
    assert model.config._attn_implementation == before


def test_checkpoint_settings_do_not_change_greedy(gpt2_like: PreTrainedTokenizerFast) -> None:
    """Qwen2.5's generation settings ask for sampling and a repetition penalty."""
    model, prompts = tiny_model("llama", len(gpt2_like)), make_prompts(gpt2_like, 4)
    expected = generate(model, gpt2_like, prompts, max_new_tokens=12, engine="plain")
    model.generation_config.update(do_sample=True, temperature=0.7, repetition_penalty=1.5, top_k=20)
    assert generate(model, gpt2_like, prompts, max_new_tokens=12, engine="plain") == expected


def test_bad_arguments(gpt2_like: PreTrainedTokenizerFast) -> None:
    model = tiny_model("llama", len(gpt2_like))
    with pytest.raises(ValueError, match="max_new_tokens"):
        generate(model, gpt2_like, make_prompts(gpt2_like, 1), max_new_tokens=0)
    with pytest.raises(ValueError, match="no token"):
        generate(model, gpt2_like, [Prompt("HumanEval/3", "", (), "", False, (), "chat/none")])
    assert generate(model, gpt2_like, []) == []


@pytest.mark.parametrize("kind", ["gpt2", "qwen", "sentencepiece"])
def test_decoding_keeps_leading_spaces(tokenizers: dict[str, PreTrainedTokenizerFast], kind: str) -> None:
    """B56: a reply decoded alone loses the indentation that it begins with."""
    tokenizer = tokenizers[kind]
    tokenizer = type(tokenizer).from_pretrained(_saved(tokenizer)) if kind == "gpt2" else tokenizer
    prompt = tokenizer("def f(x):\n", add_special_tokens=False)["input_ids"]
    whole = tokenizer("def f(x):\n    return x\n", add_special_tokens=False)["input_ids"]
    same = next(i for i, (a, b) in enumerate(zip([*prompt, -1], whole, strict=False)) if a != b)
    text = completion_text(tokenizer, whole[:same], whole[same:])
    assert tokenizer.decode(whole[:same]) + text == tokenizer.decode(whole)
    assert "    return x" in text


def test_decoding_of_a_reply_that_starts_with_a_new_token(gpt2_like: PreTrainedTokenizerFast) -> None:
    from tokenizers import AddedToken

    tokenizer = type(gpt2_like).from_pretrained(_saved(gpt2_like))
    tokenizer.add_tokens([AddedToken("    groupby", special=False, normalized=False)])
    new = len(tokenizer) - 1
    prompt = tokenizer("df = (df\n", add_special_tokens=False)["input_ids"]
    assert completion_text(tokenizer, prompt, [new]) == "    groupby"


def _saved(tokenizer: PreTrainedTokenizerFast) -> str:
    import tempfile

    folder = tempfile.mkdtemp()
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("text", ["return 1\n```\nThat is all.", "return 1\n```<|end|>", "return 1\n", "x<|end|>"])
def test_the_end_does_not_depend_on_when_it_is_looked_for(gpt2_like: PreTrainedTokenizerFast, text: str) -> None:
    prompt = build_prompt(humaneval_problem(), gpt2_like)
    ids = gpt2_like(text, add_special_tokens=False)["input_ids"]
    reader = ReplyReader(gpt2_like, frozenset({gpt2_like.eos_token_id}))
    found = {reader.shortened(ids, prompt, step) for step in (1, 3, 8, 50)}
    assert len(found) == 1
    reply = found.pop()
    assert reply.finish == ("stop" if "```" in text else "eos" if "<|end|>" in text else "length")
    assert "That is all" not in reply.text


def test_slots_are_refused_where_attention_is_not_full(gpt2_like: PreTrainedTokenizerFast) -> None:
    model = tiny_model("qwen2", len(gpt2_like))
    assert slots.supports(model)
    model.config.layer_types = ["sliding_attention", "full_attention"]
    assert not slots.supports(model)


@pytest.mark.parametrize("kind", ["gpt2", "qwen", "sentencepiece"])
@pytest.mark.parametrize("engine", ["slots", "plain"])
def test_healed_prompts_keep_their_text_and_are_continued_as_by_hand(
    tokenizers: dict[str, PreTrainedTokenizerFast], kind: str, engine: Engine
) -> None:
    tokenizer = tokenizers[kind]
    model, raws = tiny_model("llama", len(tokenizer)), spelling_of(tokenizer).raws
    healer, ends = Healer(raws), end_ids(model, tokenizer)
    texts = ["def add(a, b):\n  ", "import nu", "    return a + b", "result = np.zer", "x = 1\n\n", "for i in ran"]
    prompts = [
        Prompt(f"HumanEval/{k}", text, tuple(tokenizer.encode(text, add_special_tokens=False)), "", False, (), "")
        for k, text in enumerate(texts)
    ]
    replies = generate(model, tokenizer, prompts, max_new_tokens=6, batch_size=4, engine=engine, heal=healer)
    for prompt, reply in zip(prompts, replies, strict=True):
        kept, rest = healer.cut(prompt.ids)
        ids = list(prompt.ids[:kept])
        while rest:
            with torch.inference_mode():
                scores = model(input_ids=torch.tensor([ids])).logits[0, -1]
            fits = [i for i, raw in enumerate(raws) if raw and (rest.startswith(raw) or raw.startswith(rest))]
            ids.append(max(fits, key=lambda i: float(scores[i])))
            rest = rest[len(raws[ids[-1]]) :]
        said = ids[kept:]
        ids += greedy_by_hand(model, replace(prompt, ids=tuple(ids)), 6, len(tokenizer), ends)
        assert list(reply.ids) == ids[kept:] and reply.ids[: len(said)] == tuple(said)
        bare = b"".join(raws[i] for i in ids)
        assert bare.startswith(b"".join(raws[i] for i in prompt.ids))
        wanted = bare[len(b"".join(raws[i] for i in prompt.ids)) :].decode("utf-8", "replace")
        assert reply.text == wanted


def test_a_stop_text_in_what_was_said_first_ends_a_healed_reply(gpt2_like: PreTrainedTokenizerFast) -> None:
    model, healer = tiny_model("llama", len(gpt2_like)), Healer(spelling_of(gpt2_like).raws)
    ids = tuple(gpt2_like.encode("x = np.zer", add_special_tokens=False))
    prompt = Prompt("HumanEval/0", "", ids, "", False, (), "")
    (reply,) = generate(model, gpt2_like, [prompt], max_new_tokens=8, heal=healer)
    assert len(reply.text) > 2
    stop = reply.text[:2]
    (cut,) = generate(model, gpt2_like, [replace(prompt, stops=(stop,))], max_new_tokens=8, heal=healer)
    assert (cut.text, cut.finish) == ("", "stop")
