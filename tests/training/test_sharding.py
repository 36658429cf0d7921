"""Sharded blocks on two processes (CPU, gloo): the loader, the loss curve of one process, and a killed run."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import PartialState
from forked import run_forked
from tiny import ROWS, WIDTH, as_base, new_tokens, tiny_decoder, tiny_family, tiny_model, tokenizers
from torch import nn
from training.phase1_parts import example_set, settings
from training.sharded_worker import train_and_die

from vocabx_utils import files, models
from vocabx_utils.settings import ConfigError
from vocabx_utils.student import Student
from vocabx_utils.training import sharding
from vocabx_utils.training.batches import micro_batches
from vocabx_utils.training.phase1 import Phase1Data
from vocabx_utils.training.phase1_stage import train_variant
from vocabx_utils.training.teacher import ask_teacher


def save(folder: Path, base: Any) -> Path:
    base.model.config.update({"vocab_size": ROWS})
    base.model.save_pretrained(folder, max_shard_size="40KB")
    tokenizers().original.save_pretrained(folder)
    return folder


def two_processes(folder: Path, last: int) -> list[int]:
    ended = run_forked(train_and_die, folder, last, log=folder / "log", count=2)
    assert last or ended == [0, 0], (folder / "log").read_text()[-5000:]
    return ended


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two processes have trained without a break."""
    folder = tmp_path_factory.mktemp("sharded")
    save(folder / "model", tiny_model())
    two_processes(folder, 0)
    return folder


def test_each_process_reads_its_part_of_every_block(trained: Path) -> None:
    assert len(list((trained / "model").glob("*.safetensors"))) > 1
    base = models.load_base_model(trained / "model", device="cpu")
    sizes = {name: parameter.numel() for name, parameter in base.model.named_parameters()}
    found = [files.read_json(trained / f"read_{rank}.json") for rank in range(2)]
    for name, size in sizes.items():
        read = [sum(count for key, count in side["read"] if key == name) for side in found]
        assert read == [side["held"][name] for side in found], name
        assert read == ([size // 2] * 2 if ".layers." in name else [size] * 2), name
    assert {side["fingerprint"] for side in found} == {base.fingerprint}  # the same weights


def test_loss_curve_of_two_processes_equals_one(trained: Path, tmp_path: Path) -> None:
    base = models.load_base_model(trained / "model", device="cpu")
    train, validation = example_set(0, 16), example_set(16, 23)
    data = Phase1Data(train, validation, ask_teacher(base, train), ask_teacher(base, validation, likelihood=True))
    config = settings(epochs=2, batch_size=3, token_budget=60)
    one = train_variant("mean_kl_last", base, new_tokens(), data, config, tmp_path / "one")
    keys = [files.read_json(folder / "key.json") for folder in (one.folder, trained / "variant")]
    assert keys[0] == keys[1]  # a run may go on with or without shards
    assert not {"sharded", "gradient_checkpointing", "quantization"} & set(keys[0]["settings"])
    curves = [files.read_jsonl(folder / "steps.jsonl") for folder in (one.folder, trained / "variant")]
    for name in ("input_loss", "head_loss"):
        here, there = ([row[name] for row in curve] for curve in curves)
        assert len(here) == 12
        np.testing.assert_allclose(here, there, rtol=1e-4)
    scores = [files.read_jsonl(folder / "metrics.jsonl")[-1] for folder in (one.folder, trained / "variant")]
    for name in ("kl_last", "ce", "base_bpb"):
        assert scores[0][name] == pytest.approx(scores[1][name], rel=1e-4)


def test_a_killed_run_ends_with_the_same_bits(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "model", tmp_path / "model")
    assert -signal.SIGKILL in two_processes(tmp_path, 5)
    assert (tmp_path / "variant" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "variant" / "provenance.json").exists()
    two_processes(tmp_path, 0)
    for epoch in (1, 2):
        ours, theirs = (
            files.read_tensors(f / "variant" / "rows" / f"epoch_{epoch:02d}.safetensors") for f in (tmp_path, trained)
        )
        assert all(torch.equal(ours[name], theirs[name]) for name in ("input_rows", "head_rows"))
    curves = [files.read_jsonl(folder / "variant" / "steps.jsonl") for folder in (tmp_path, trained)]
    assert curves[0] == curves[1]


@pytest.mark.parametrize("tied", [True, False])
def test_an_empty_model_is_filled_from_files(tmp_path: Path, tied: bool) -> None:
    model = tiny_decoder(ROWS, family="qwen2", tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    empty = sharding.empty_model(model.config, torch.float32)
    assert all(parameter.is_meta for parameter in empty.parameters())
    sharding.materialise(empty, torch.device("cpu"))
    sharding.read_weights(empty, tmp_path)
    wanted = models.untie(model).state_dict()
    for name, tensor in empty.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name
    ids = torch.arange(9)[None]
    assert torch.equal(empty(ids).logits, model.eval()(ids).logits)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    tiny_decoder(ROWS).save_pretrained(tmp_path)
    more = sharding.empty_model(tiny_decoder(ROWS, num_hidden_layers=3).config, torch.float32)
    wide = sharding.empty_model(tiny_decoder(ROWS, intermediate_size=48).config, torch.float32)
    for model in (more, wide):
        sharding.materialise(model, torch.device("cpu"))
    with pytest.raises(models.ModelError, match=r"lacks 9 of the 30 tensors, for example \['model.layers.2"):
        sharding.read_weights(more, tmp_path)
    with pytest.raises(models.ModelError, match=r"mlp.gate_proj.weight as \(64, 32\), the model wants \(48, 32\)"):
        sharding.read_weights(wide, tmp_path)


def test_one_process_has_nothing_to_shard_over(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="several processes"):
        sharding.load_sharded_base(tmp_path, None)
    with pytest.raises(ConfigError, match="4-bit base lies on each device whole"):
        settings(sharded=True, quantization="4bit")


def test_bytes_of_a_card_are_counted() -> None:
    """7B in bfloat16: two matrices of 32,000 x 4,096, and 32 blocks of 202 million numbers."""
    from transformers import LlamaConfig

    model = sharding.empty_model(LlamaConfig(), torch.bfloat16)
    block = 4 * 4096 * 4096 + 3 * 4096 * 11_008 + 2 * 4096
    found = sharding.card_bytes(model, 8)
    assert found == sharding.CardBytes(2 * 32 * block // 8, 2 * 2 * block, 2 * (2 * 32_000 * 4096 + 4096))
    assert found.total == found.blocks + found.gathered + found.whole


def test_a_base_that_does_not_fit_says_how_many_devices_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig

    model = sharding.empty_model(LlamaConfig(), torch.bfloat16)
    processes: Any = SimpleNamespace(num_processes=2, device=torch.device("cuda"))
    need = sharding.card_bytes(model, 2)
    for memory, remedy in (
        (need.total, ""),
        (need.gathered + need.whole + need.blocks // 2, "at least 4 of them"),
        (need.whole, "do not fit, and the rows of a matrix are not spread"),
    ):
        facts = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, facts=facts: facts)
        if remedy:
            with pytest.raises(models.ModelError, match=remedy):
                sharding.require_room(model, processes)
        else:
            assert "6.0 blocks" in sharding.require_room(model, processes)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_recomputed_blocks_give_the_same_gradient(family: str) -> None:
    plain, again = (as_base(tiny_family(family, ROWS)) for _ in range(2))
    sharding.recompute_blocks(again.model)
    sharding.recompute_blocks(again.model)  # changes nothing more
    assert sharding.recomputes(again.model) and not sharding.recomputes(plain.model)
    assert models.weights_fingerprint(again.model) == plain.fingerprint
    gradients = []
    for base in (plain, again):
        torch.manual_seed(0)
        student = Student(base.model, base.vocab_size, torch.randn(4, base.width), torch.randn(4, base.width))
        final, _ = student.hidden(torch.tensor([[5, 301, 7, 302]]))
        final.square().sum().backward()
        gradients.append(student.input_rows.grad)
    assert torch.equal(*gradients) and gradients[0].abs().sum() > 0


def test_processes_make_as_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [50, 9, 40, 9, 30, 8, 45]
    processes: Any = [SimpleNamespace(num_processes=2, process_index=rank) for rank in range(2)]
    model = nn.Linear(1, 1)
    assert [len(sharding.even_parts(model, lengths, range(7), 50, p)) for p in processes] == [4, 1]
    monkeypatch.setattr(sharding, "is_sharded", lambda _: True)
    both = [sharding.even_parts(model, lengths, range(7), 50, p) for p in processes]
    assert [len(parts) for parts in both] == [4, 4] and both[1][1:] == [[], [], []]
    assert sorted(i for parts in both for part in parts for i in part) == list(range(7))
    alone: Any = SimpleNamespace(num_processes=1, process_index=0)
    monkeypatch.setattr(sharding, "is_sharded", lambda _: pytest.fail("a step alone looks at no parameter"))
    for given in (None, alone):
        assert sharding.even_parts(model, lengths, range(7), 50, given) == micro_batches(lengths, range(7), 50)


def test_an_idle_pass_changes_nothing() -> None:
    base = tiny_model()
    student = Student(base.model, base.vocab_size, torch.ones(2, WIDTH), torch.ones(2, WIDTH))
    student.input_rows.grad = torch.full((2, WIDTH), 0.25)
    sharding.idle_pass(student)
    assert torch.equal(student.input_rows.grad, torch.full((2, WIDTH), 0.25))
    with torch.no_grad():
        sharding.idle_pass(student)


def test_a_process_state_of_one_is_no_several() -> None:
    with pytest.raises(ValueError, match="several processes"):
        sharding.shard(nn.Linear(2, 2), [], PartialState(cpu=True))
