"""Fine-tuning: what may move moves and nothing else; finished work is read back."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import ROWS, as_base, chat_base, new_rows, rendered_pairs, tiny_family, with_words

from vocabx_utils import files, folders, runs
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.measured import stage_table
from vocabx_utils.models import with_extra_rows
from vocabx_utils.settings import ConfigError
from vocabx_utils.training import finetuning, finetuning_variants, loop, stages, tuning_plans
from vocabx_utils.training.cross_entropy import IGNORE
from vocabx_utils.training.examples import encode
from vocabx_utils.training.finetuning_stage import FineTuned, Measured, OutOfMemory, fine_tune
from vocabx_utils.training.loop import learning_rate
from vocabx_utils.training.loss_model import LossModel
from vocabx_utils.training.stage_files import load_stage

SMALL = dict(
    max_length=128, tokens_per_step=300, tokens_per_batch=256, lora_rank=4, lora_alpha=4, a_epochs=1, b_epochs=1,
    a_rate=1e-2, b_rate=1e-2, c_rate=1e-3,
)  # fmt: skip


def setting(words: int = 3, **options):
    """A tiny extended model with its texts."""
    base = chat_base(rows=options.pop("rows", None))
    tokenizer = with_words(base.tokenizer) if words else base.tokenizer
    model = with_extra_rows(base, *new_rows(base, words), base.vocab_size) if words else copy.deepcopy(base.model)
    new_ids = range(base.vocab_size, base.vocab_size + words)
    config = FineTuneConfig(**{**SMALL, **options})
    coded = [
        encode(part, tokenizer, max_length=128)
        for part in (rendered_pairs(tokenizer)[:9], rendered_pairs(tokenizer)[9:])
    ]
    return model, coded, new_ids, base.vocab_size + words, config


def tune(folder: Path, words: int = 3, observe=None, start=None, **options):
    model, (train, validation), new_ids, limit, config = setting(words, **options)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = fine_tune(
        model, train, validation, folder, config, limit=limit, new_ids=new_ids, observe=observe, start=start
    )
    return model, before, result


def changed(before: dict[str, torch.Tensor], model) -> set[str]:
    after = {
        name.replace(".base_layer", ""): tensor for name, tensor in model.state_dict().items() if "lora_" not in name
    }
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


def test_stage_a_moves_both_matrices_only(tmp_path):
    model, before, result = tune(tmp_path, stages=("a",))
    assert changed(before, model) == {"model.embed_tokens.weight", "lm_head.weight"}
    assert files.read_json(tmp_path / "a" / "trainable.json") == [
        {"group": "model.embed_tokens.weight", "tensors": 1, "parameters": 303 * 32, "dtype": "float32"},
        {"group": "lm_head.weight", "tensors": 1, "parameters": 303 * 32, "dtype": "float32"},
    ]
    assert runs.read_provenance(tmp_path)["new_ids_without_examples"] == [302]
    validation = result.losses[result.losses.kind == "epoch"].validation_loss
    assert validation.iloc[-1] < validation.iloc[0]


def test_stage_b_moves_the_adapter_only(tmp_path):
    """B43: what trains is listed by group, and is the adapter."""
    model, before, _ = tune(tmp_path, stages=("b",))
    assert changed(before, model) == set()
    groups = [row["group"] for row in files.read_json(tmp_path / "b" / "trainable.json")]
    linear = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert len(groups) == 14 and all(any(name in group for group in groups) for name in linear)
    assert all("layers.*" in group and "lora_" in group for group in groups)
    adapter = files.read_tensors(tmp_path / "b" / "adapter" / "adapter_model.safetensors")
    assert any(tensor.abs().max() > 0 for name, tensor in adapter.items() if "lora_B" in name)


def test_stage_b_may_move_the_new_rows_and_no_other(tmp_path):
    model, before, _ = tune(tmp_path, stages=("b",), rows_in_b=True)
    assert changed(before, model) == {"model.embed_tokens.weight", "lm_head.weight"}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        after = model.state_dict()[name]
        assert torch.equal(after[:300], before[name][:300])
        assert not torch.equal(after[300:302], before[name][300:302])
    rows = files.read_tensors(tmp_path / "b" / "adapter" / "new_rows.safetensors")
    assert torch.equal(rows["input_rows"], model.state_dict()["model.embed_tokens.weight"][300:303])


def test_stage_c_moves_one_half_after_the_other(tmp_path):
    """Momentum kept from the first half would move it on while the second trains (case B46)."""
    model, before, _ = tune(tmp_path, stages=("c",))
    first = files.read_tensors(tmp_path / "c1" / "blocks.safetensors")
    assert {name.split(".")[2] for name in first} == {"0", "1"}
    after = model.state_dict()
    for name in first:  # frozen again while the second half trained
        assert torch.equal(first[name], after[name])
    assert changed(before, model) == {name for name in before if ".layers." in name}


def test_padding_rows_of_the_matrix_never_move(tmp_path):
    model, before, _ = tune(tmp_path, stages=("a",), rows=320)
    after = model.state_dict()["lm_head.weight"]
    assert after.shape[0] == 320 and torch.equal(after[303:], before["lm_head.weight"][303:])


def test_weight_decay_touches_only_what_the_stage_frees(tmp_path):
    """Decay moves frozen weights where only their gradients are zeroed (case B45)."""
    model, before, _ = tune(tmp_path, stages=("c",), weight_decay=0.1)
    assert {name for name in changed(before, model)} == {name for name in before if ".layers." in name}


def test_each_stage_gets_a_new_optimiser(tmp_path, monkeypatch):
    made = []
    original = torch.optim.AdamW

    class Counted(original):
        def __init__(self, params, **kwargs):
            made.append(self)
            super().__init__(params, **kwargs)
            assert not self.state

    monkeypatch.setattr(torch.optim, "AdamW", Counted)
    tune(tmp_path, stages=("a", "b"))
    assert len(made) == 2


def test_loss_equals_the_models_own(tmp_path):
    model, (train, _), new_ids, limit, _ = setting()
    tuned = LossModel(model, limit, torch.float32, new_ids)
    ids = torch.from_numpy(train.examples[0].ids)[None]
    expected = model(input_ids=ids, labels=ids).loss * (ids.shape[1] - 1)
    targets = ids.roll(-1, 1).index_fill(1, torch.tensor([ids.shape[1] - 1]), IGNORE)
    assert float(tuned(ids, targets).detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_batched_equals_single_with_accumulation(tmp_path):
    losses = [
        tune(tmp_path / str(budget), stages=("a",), tokens_per_batch=budget)[2].losses.loss.dropna().to_numpy()
        for budget in (128, 4096)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=2e-5)


def test_same_seed_twice(tmp_path):
    runs_of = [tune(tmp_path / str(k), stages=("a", "b"), lora_dropout=0.1)[2].losses for k in range(2)]
    assert runs_of[0].loss.dropna().tolist() == runs_of[1].loss.dropna().tolist()


def test_observed_once_per_stage_and_finished_work_is_read_back(tmp_path):
    calls = []

    def observe(name, model):
        calls.append(name)
        return {"name": name}

    first = tune(tmp_path, stages=("a", "b"), observe=observe)[2]
    again = tune(tmp_path, stages=("a", "b"), observe=observe)[2]
    assert calls == ["start", "a", "b"]
    assert first.observed == again.observed == {name: {"name": name} for name in calls}
    assert again.losses.equals(first.losses)
    with pytest.raises(runs.KeyMismatchError, match="a_rate"):
        tune(tmp_path, stages=("a", "b"), a_rate=0.5)


@pytest.mark.parametrize(("path", "measured"), [(("a", "b"), 3), (("c",), 3), (("b", "a"), 4)])
def test_a_model_is_validated_once_between_stages(tmp_path, monkeypatch, path, measured):
    calls, validate = [], finetuning.validation_loss
    monkeypatch.setattr(finetuning, "validation_loss", lambda *inputs: calls.append(validate(*inputs)) or calls[-1])
    epochs = tune(tmp_path / "one", stages=path)[2].losses.query("kind == 'epoch'").validation_loss
    assert len(calls) == measured and len(epochs) == 4  # merging an adapter rounds, so what follows it is measured
    whole = finetuning.StageTraining.validate
    monkeypatch.setattr(finetuning.StageTraining, "validate", lambda self, epoch, known=None: whole(self, epoch))
    again = tune(tmp_path / "two", stages=path)[2].losses.query("kind == 'epoch'").validation_loss
    assert again.tolist() == epochs.tolist()


def test_a_finished_variant_is_tabulated_by_stage(tmp_path):
    *_, result = tune(tmp_path, observe=lambda stage, model: {"bits_per_byte": {"domain": float(len(stage))}})
    table = stage_table({"m": result.to_dict()}).loc["m"]
    assert list(table.index) == ["start", "a", "b"] and list(table["domain"]) == [5, 1, 1]
    assert [result.measured(stage).validation_loss for stage in table.index] == list(table["validation loss"])
    assert list(table["steps"].iloc[1:]) == list(result.stages.steps) and math.isnan(table["steps"].iloc[0])


def test_a_start_that_was_measured_is_not_measured_again(tmp_path, monkeypatch):
    seen = []

    def observe(name, model):
        seen.append(name)
        return {"name": name}

    first = tune(tmp_path / "first", stages=("a",), observe=observe)[2]
    calls, validate = [], finetuning.validation_loss
    monkeypatch.setattr(finetuning, "validation_loss", lambda *inputs: calls.append(1) or validate(*inputs))
    other = tune(tmp_path / "other", stages=("b",), observe=observe, start=first.measured("start"))[2]
    assert seen == ["start", "a", "b"] and len(calls) == 1
    assert other.observed == {"start": {"name": "start"}, "b": {"name": "b"}}
    unaided = tune(tmp_path / "unaided", stages=("b",))[2]
    assert other.losses.validation_loss.dropna().tolist() == unaided.losses.validation_loss.dropna().tolist()
    assert first.measured("a").validation_loss == first.stages.validation_loss.iloc[0]


BROKEN = dict(stages=("a", "b", "c"), a_epochs=2, lora_dropout=0.1, checkpoint_every=2)


def test_out_of_memory_names_the_setting_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    original, count = finetuning.StageTraining.step, [0]

    def step(self, *arguments):
        count[0] += 1
        if count[0] == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, *arguments)

    monkeypatch.setattr(finetuning.StageTraining, "step", step)
    with pytest.raises(OutOfMemory, match=r"tokens_per_batch=256: halve it.*continues from"):
        tune(tmp_path, stages=("a",), checkpoint_every=1)
    assert (tmp_path / "a" / "checkpoint.safetensors").exists()
    _, _, result = tune(tmp_path, stages=("a",), checkpoint_every=1)
    assert result.stages.steps.tolist() == [len(result.losses[result.losses.kind == "step"])]


def test_loss_that_is_not_finite_names_the_texts_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    original = finetuning.StageTraining.step

    def step(self, step, number, epoch):
        if number == 1:
            self.tuned.tuned.lm_head.weight.data[5] = math.inf
        return original(self, step, number, epoch)

    monkeypatch.setattr(finetuning.StageTraining, "step", step)
    with pytest.raises(RuntimeError, match=r"stage a, step 2: the loss over training texts \[\d.*\] is nan"):
        tune(tmp_path, stages=("a",), checkpoint_every=1)
    stored = files.read_tensors(tmp_path / "a" / "checkpoint.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in stored.values()) and int(stored["progress"]) == 1


def test_the_progress_line_tells_loss_and_speed(tmp_path, monkeypatch):
    seen, original = [], loop.progress

    def progress(*arguments, **options):
        bar = original(*arguments, **options)
        monkeypatch.setattr(bar, "set_postfix_str", lambda text, **_: seen.append(text))
        return bar

    monkeypatch.setattr(loop, "progress", progress)
    _, _, result = tune(tmp_path, stages=("a",))
    losses = result.losses[result.losses.kind == "step"].loss
    assert [text.split(",")[0] for text in seen] == [f"loss {loss:.4f}" for loss in losses]
    assert all(text.endswith("tokens/s") for text in seen)


def test_new_row_that_should_have_moved(tmp_path):
    """B42: a row with examples that did not change stops the stage."""
    with pytest.raises(RuntimeError, match=r"left 2 input rows as they were.*ids \[300, 301\]"):
        tune(tmp_path, stages=("a",), a_rate=1e-30)


def test_moved_frozen_tensor_is_caught(tmp_path, monkeypatch):
    original = finetuning.StageTraining.step

    def step(self, *arguments):
        self.module.tuned.model.norm.weight.data[0] += 1e-6
        return original(self, *arguments)

    monkeypatch.setattr(finetuning.StageTraining, "step", step)
    with pytest.raises(RuntimeError, match=r"stage a moved 1 frozen tensors.*model\.norm\.weight"):
        tune(tmp_path, stages=("a",))


@pytest.mark.parametrize(
    ("family", "what"), [("gemma2", "soft-capped logits"), ("cohere", "scaled logits"), ("granite", "scaled logits")]
)
def test_families_with_other_logits_are_refused(tmp_path, family, what):
    """Stages a to c read the matrices directly; a family that treats its logits is named before anything is trained."""
    _, (train, validation), new_ids, limit, config = setting(words=0, stages=("a",))
    model = as_base(tiny_family(family, ROWS)).model
    with pytest.raises(ValueError, match=f"{what}.*plain decoders only"):
        fine_tune(model, train, validation, tmp_path, config, limit=limit, new_ids=new_ids)
    assert not (tmp_path / "a" / "losses.jsonl").exists()


def test_schedules():
    config = FineTuneConfig(**SMALL)
    a, b = stages.plan_stages(config)

    def rate(stage: stages.Stage, step: int, total: int) -> float:
        return learning_rate(step, [total], stage.warmup, peak=stage.learning_rate, after=stage.schedule)

    rates = [rate(a, step, 20) for step in range(20)]
    assert max(rates) == pytest.approx(config.a_rate) and rates[0] == pytest.approx(config.a_rate / 2)
    assert rates[2:] == sorted(rates[2:], reverse=True) and rates[-1] > 0
    assert [rate(b, step, 8) for step in range(8)][2:] == [config.b_rate] * 6


@pytest.mark.parametrize(
    "bad", [{"stages": ("a", "d")}, {"stages": ()}, {"dtype": "float16"}, {"max_length": 999, "tokens_per_batch": 9}]
)
def test_bad_settings(bad):
    with pytest.raises(ConfigError):
        FineTuneConfig(**bad)


def test_variants_that_start_from_one_model_share_its_measurement(monkeypatch):
    given = {}

    def tuned(run, plan, *rest, measured, **options):
        given[plan.name] = measured
        losses = pd.DataFrame(
            [{"kind": "epoch", "stage": key, "validation_loss": value} for key in plan.stages for value in (2.0, 1.0)]
        )
        observed = {key: {"of": f"{plan.name} {key}"} for key in ("start", *plan.stages)}
        return FineTuned(Path(plan.name), losses, pd.DataFrame({"stage": plan.stages}), observed)

    monkeypatch.setattr(finetuning_variants, "tune_variant", tuned)
    config = FineTuneConfig(variants=("base", "m"), without_a=("m",), full=("m",))
    done = finetuning_variants.tune_variants(None, tuning_plans.plan_variants(config), None, None, None, config)
    assert list(done) == ["base", "m", "m_no_a", "m_full"]
    assert given["base"] is None and given["m"] is None
    assert given["m_no_a"] == Measured({"of": "m start"}, 2.0)
    assert given["m_full"] == Measured({"of": "m a"}, 1.0)


def test_without_stage_a_lora_gets_its_epochs_and_as_long_a_warm_up():
    config = FineTuneConfig(variants=("m",), without_a=("m",), full=(), a_epochs=3, b_epochs=2, b_warmup=0.5)
    both, without = tuning_plans.plan_variants(config)
    assert not both.settings
    settings = dataclasses.replace(config, stages=without.stages, **without.settings)
    (stage,) = stages.plan_stages(settings)
    assert stage.epochs == config.a_epochs + config.b_epochs
    assert stage.epochs * stage.warmup == pytest.approx(config.b_epochs * config.b_warmup)


@pytest.mark.parametrize("family", ["gpt2", "falcon", "mpt", "bloom", "opt", "gpt_neox", "phi3"])
def test_families_that_name_their_blocks_otherwise_go_through_every_stage(tmp_path, family):
    base = as_base(tiny_family(family, ROWS))
    words = ("groupby", "numpy", "unseenword")
    tokenizer = with_words(base.tokenizer, words)
    first = base.vocab_size
    model = with_extra_rows(base, *new_rows(base, len(words)), first)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    train, validation = (
        encode(part, tokenizer, max_length=128)
        for part in (rendered_pairs(tokenizer)[:6], rendered_pairs(tokenizer)[6:])
    )
    config = FineTuneConfig(**{**SMALL, "stages": ("a", "b", "c")})
    new_ids = range(first, first + len(words))
    result = fine_tune(model, train, validation, tmp_path, config, limit=new_ids.stop, new_ids=new_ids)
    assert list(result.stages.stage) == ["a", "b", "c1", "c2"]
    rows = files.read_json(tmp_path / "b" / "trainable.json")
    _, names = stages._lora_pattern(model, config)
    linear = {name.rsplit(".", 1)[-1] for name in names}
    assert {row["group"].split(".lora_")[0].rsplit(".", 1)[-1] for row in rows} == linear
    assert len(files.read_tensors(tmp_path / "c1" / "blocks.safetensors")) > 2

    again = with_extra_rows(base, *new_rows(base, len(words)), first)
    for stage in ("a", "b", "c1", "c2"):
        again = load_stage(again, tmp_path / stage, new_ids=new_ids)
        again = again.merge_and_unload() if hasattr(again, "merge_and_unload") else again
    trained = dict(result_model(model).named_parameters())
    for name, tensor in again.named_parameters():
        torch.testing.assert_close(tensor, trained[name], rtol=0, atol=1e-6)
    assert any(not torch.equal(before[name], tensor) for name, tensor in again.named_parameters())


def result_model(model):
    """The plain model, whether or not adapters were merged into it in place."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def test_what_a_stage_needs_is_checked_before_its_first_step(tmp_path):
    """A loss at the end is the worst place to learn that blocks are missing, a weight is NaN, or an id has no row."""
    for fault, message in (
        ("blocks", "0 lists of 4 modules"),
        ("weight", "layers.2.mlp.up_proj.weight"),
        ("id", "id 303"),
    ):
        model, (train, validation), new_ids, limit, config = setting(stages=("a", "c"))
        if fault == "blocks":
            model.model.layers = torch.nn.Sequential(*model.model.layers)
        elif fault == "weight":
            with torch.no_grad():
                model.model.layers[2].mlp.up_proj.weight[1, 1] = math.nan
        else:
            train.examples[3].ids[2] = limit
        with pytest.raises(ValueError, match=message):
            fine_tune(model, train, validation, tmp_path / fault, config, limit=limit, new_ids=new_ids)
        assert not (tmp_path / fault).exists()


def test_a_stage_whose_files_do_not_fit_takes_no_step(tmp_path, monkeypatch):
    model, (train, validation), new_ids, limit, config = setting(stages=("a",))
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: SimpleNamespace(free=folders.MARGIN + 1000))
    with pytest.raises(folders.SpaceError, match=r"stage a needs .* 256 MiB margin"):
        fine_tune(model, train, validation, tmp_path / "run", config, limit=limit, new_ids=new_ids)
    assert not list(tmp_path.rglob("losses.jsonl"))


def test_a_new_token_that_only_ends_a_text_may_rest(tmp_path):
    """Nothing follows it there, so its input row has no gradient; its head row has one at every position."""
    model, (train, validation), new_ids, limit, config = setting(stages=("b",), rows_in_b=True)
    last = new_ids[2]  # stands in no text of the setting
    ends = tuple(dataclasses.replace(e, ids=np.append(e.ids, last)) for e in train.examples)
    before = [matrix.data.clone() for matrix in stages.matrices_of(model)]
    fine_tune(model, type(train)(ends), validation, tmp_path, config, limit=limit, new_ids=new_ids)
    after = stages.matrices_of(model)
    assert [torch.equal(old[last], new[last]) for old, new in zip(before, after, strict=True)] == [True, False]
