"""The teacher cache: right rows, announced, refused, and never used for anything else."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import ROWS, WIDTH, N, V, tiny_model
from training.phase1_parts import AsksNothing, example_set

from vocabx_utils import folders, locks
from vocabx_utils.training import teacher
from vocabx_utils.training.blocks import causal_only
from vocabx_utils.training.teacher import ask_teacher, storage_kl, teacher_cache
from vocabx_utils.training.validation import base_bits_per_byte

FIELDS = {"original": "original_ids", "extended": "ids"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", [-1, 1])
def test_rows_are_the_models_hidden_states(tmp_path: Path, dtype: torch.dtype, layer: int) -> None:
    base, examples = tiny_model(dtype=dtype), example_set()
    cache = teacher_cache(base, examples, tmp_path, layer=layer, token_budget=70, tell=lambda _: None)
    assert cache.states.dtype == dtype and cache.states.shape[1] == WIDTH
    for rows, example in zip(cache.rows, examples.examples, strict=True):
        ids = torch.from_numpy(example.original_ids)[None]
        with torch.no_grad():
            states = base.model.base_model(input_ids=ids, output_hidden_states=True).hidden_states[layer][0]
        tolerance = 1e-4 if dtype == torch.float32 else 0.06
        torch.testing.assert_close(
            cache.states[torch.from_numpy(rows)], states[example.teacher_at()], rtol=tolerance, atol=tolerance
        )


def test_base_score_equals_the_models_own_loss(tmp_path: Path) -> None:
    base, examples = tiny_model(), example_set()
    cache = teacher_cache(base, examples, tmp_path, token_budget=70, likelihood=True, tell=lambda _: None)
    nats, n_bytes = 0.0, 0
    for example in examples.examples:
        ids = torch.from_numpy(example.original_ids)[None]
        with torch.no_grad():
            logits = base.model(input_ids=ids).logits[0, :-1, : base.vocab_size].double()
        nats += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        n_bytes += example.n_original_bytes
    assert cache.base_nats == pytest.approx(nats, rel=1e-5)
    assert base_bits_per_byte(cache, examples) == pytest.approx(nats / np.log(2) / n_bytes, rel=1e-5)


def test_likelihood_is_summed_up_where_it_is_asked_for(tmp_path: Path) -> None:
    base, examples = tiny_model(), example_set()
    told: list[str] = []
    without, asked, again = (
        teacher_cache(base, examples, tmp_path, likelihood=wanted, tell=told.append) for wanted in (False, True, True)
    )
    assert len(told) == 2  # a cache without it is not one with it
    assert torch.equal(without.states, asked.states) and asked.base_nats == again.base_nats
    assert asked.base_nats == ask_teacher(base, examples, likelihood=True).base_nats
    assert without.base_nats is ask_teacher(base, examples).base_nats is None
    with pytest.raises(ValueError, match="likelihood=True"):
        base_bits_per_byte(without, examples)


def test_announced_before_written_and_reused_only_for_the_same_input(tmp_path: Path) -> None:
    base, examples = tiny_model(), example_set()
    told: list[tuple[str, bool]] = []

    def tell(message: str) -> None:
        told.append((message, (tmp_path / "states.bin").exists()))

    first = teacher_cache(base, examples, tmp_path, tell=tell)
    assert len(told) == 1 and "MiB" in told[0][0] and not told[0][1]
    teacher_cache(base, examples, tmp_path, tell=tell)
    assert len(told) == 1
    for changed in (
        (tiny_model(seed=1), examples, {}),
        (base, example_set(0, 23), {}),
        (tiny_model(dtype=torch.bfloat16), examples, {}),
        (base, examples, {"layer": 1}),
    ):
        before = len(told)
        other = teacher_cache(changed[0], changed[1], tmp_path, tell=tell, **changed[2])
        assert len(told) == before + 1
        assert other.states.dtype != first.states.dtype or not torch.equal(other.states, first.states)


def test_one_changed_weight_is_another_model(tmp_path: Path) -> None:
    """The cache must not trust a fingerprint that samples the weights."""
    base, examples = tiny_model(), example_set()
    told: list[str] = []
    teacher_cache(base, examples, tmp_path, tell=told.append)
    with torch.no_grad():
        base.model.model.layers[1].mlp.down_proj.weight[3, 5] += 0.25
    teacher_cache(base, examples, tmp_path, tell=told.append)
    assert len(told) == 2


def test_an_interrupted_cache_is_made_again(tmp_path: Path) -> None:
    base, examples = tiny_model(), example_set()
    whole = teacher_cache(base, examples, tmp_path, tell=lambda _: None)
    states = whole.states.clone()
    (tmp_path / "key.json").unlink()
    with (tmp_path / "states.bin").open("r+b") as file:
        file.write(b"\0" * 400)
    told: list[str] = []
    again = teacher_cache(base, examples, tmp_path, tell=told.append)
    assert told and torch.equal(again.states, states)


def test_refused_where_it_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(folders.SpaceError, match=r"MiB \+ 256 MiB margin.*VOCABX_RUNS"):
        teacher_cache(tiny_model(), example_set(), tmp_path / "cache", tell=lambda _: None)
    assert not (tmp_path / "cache" / "states.bin").exists()
    assert not locks.lock_path(tmp_path / "cache").exists()  # others may try at once


def test_text_without_new_tokens_is_refused(tmp_path: Path) -> None:
    from tiny import tokenizers

    from vocabx_utils.training.examples import whole_texts
    from vocabx_utils.vocabulary.alignment import align_ids

    plain = whole_texts([align_ids(tokenizers(), [65, 66, 67], [65, 66, 67])], V, N)
    with pytest.raises(ValueError, match="no example"):
        teacher_cache(tiny_model(), plain, tmp_path, tell=lambda _: None)


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    base, examples = tiny_model(), example_set()
    states = teacher_cache(base, examples, tmp_path, tell=lambda _: None).states.clone()
    path = tmp_path / "states.bin"
    whole = path.read_bytes()
    for damaged in (bytes(len(whole)), whole[:-100], whole[:50] + b"\1" + whole[51:], None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        told: list[str] = []
        again = teacher_cache(base, examples, tmp_path, tell=told.append)
        assert torch.equal(again.states, states) and path.read_bytes() == whole
        assert "states.bin is not what was written" in told[0] and len(told) == 2
    (tmp_path / "key.json").write_text("{torn")
    assert torch.equal(teacher_cache(base, examples, tmp_path, tell=lambda _: None).states, states)


def test_states_are_on_the_disk_before_the_key_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    teacher_cache(tiny_model(), example_set(), tmp_path, tell=lambda _: None)
    assert "states.bin" in synced and synced.index("states.bin") < len(synced) - 1
    assert synced[-1].startswith(".key-")


@pytest.mark.parametrize(("kind", "number"), [("original", ROWS - 1), ("original", ROWS + 5), ("extended", V + N)])
def test_ids_beyond_the_vocabulary_are_refused_before_the_teacher_runs(tmp_path: Path, kind: str, number: int) -> None:
    """B26: a padding row would give a finite, wrong result, and no row at all a bare IndexError."""
    good = example_set(0, 6)
    odd = getattr(good.examples[3], FIELDS[kind]).copy()
    odd[2] = number
    changed = replace(good.examples[3], **{FIELDS[kind]: odd})
    examples = replace(good, examples=(*good.examples[:3], changed, *good.examples[4:]))
    with pytest.raises(ValueError, match=rf"text {changed.source} holds id {number} under the {kind} tokenizer"):
        teacher_cache(tiny_model(), examples, tmp_path / "cache", tell=lambda _: None)
    assert not (tmp_path / "cache").exists()


def test_later_runs_share_states_and_other_texts_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path))
    base, told = tiny_model(), list[str]()
    first = teacher_cache(base, example_set(), tell=told.append)
    again = teacher_cache(tiny_model(), example_set(), tell=told.append)
    assert len(told) == 1 and torch.equal(again.states, first.states)
    teacher_cache(base, example_set(0, 6), tell=told.append)
    assert len(told) == 2 and len(list((tmp_path / ".teacher").glob("*/key.json"))) == 2


@pytest.mark.parametrize(("storage", "tolerance"), [(torch.bfloat16, 0.01), (torch.float8_e4m3fn, 0.07)])
def test_smaller_storage_says_what_it_changes(tmp_path: Path, storage: torch.dtype, tolerance: float) -> None:
    base, examples, told = tiny_model(), example_set(), list[str]()
    exact = teacher_cache(base, examples, tmp_path / "exact", tell=told.append)
    small = teacher_cache(base, examples, tmp_path / "small", storage=storage, tell=told.append)
    assert (tmp_path / "small" / "states.bin").stat().st_size * 4 == exact.states.nbytes * storage.itemsize
    rows = torch.arange(len(exact.states))
    found, states = small.take(rows, base.device), exact.take(rows, base.device)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, states, rtol=tolerance, atol=0.01)

    head = base.head_rows[: base.vocab_size].double()
    log_p, log_q = (torch.log_softmax(s.double() @ head.T, -1) for s in (states, found))
    moved = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    assert 0 < storage_kl(base, states, storage) == pytest.approx(moved, rel=0.02)
    assert str(storage) in told[-1] and "nats a position" in told[-1]
    top, same = small.goals.top, exact.goals.top
    assert (top - same).abs().max() < 0.05


def test_a_state_that_the_storage_cannot_hold_is_refused() -> None:
    states = torch.full((2, WIDTH), 500.0)
    with pytest.raises(ValueError, match=r"holds 500, torch\.float8_e4m3fn at most 448"):
        storage_kl(tiny_model(), states, torch.float8_e4m3fn)


def test_the_teachers_pass_asks_the_device_for_nothing(tmp_path: Path) -> None:
    base, examples = tiny_model(), example_set()
    cache = teacher_cache(base, examples, tmp_path, token_budget=70, likelihood=True, tell=lambda _: None)
    with causal_only(), AsksNothing():
        found = list(teacher._passes(base, examples, -1, 70, likelihood=True))
        without = list(teacher._passes(base, examples, -1, 70, likelihood=False))
    assert sorted(index for part, *_ in found for index in part) == list(range(len(examples)))
    assert float(sum(nats for *_, nats in found)) == cache.base_nats
    assert float(sum(nats for *_, nats in without)) == 0
    for part, kept, _ in found:
        assert torch.equal(kept, cache.states[torch.from_numpy(np.concatenate([cache.rows[i] for i in part]))])
