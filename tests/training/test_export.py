"""Exports: plain folders that load without this package, with equal logits."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forked import run_forked
from safetensors import SafetensorError
from tiny import CHAT, chat_base, chat_tokenizer, new_rows, rendered_pairs, tiny_decoder, with_words
from training.export_parts import export_and_die, extension_of, with_rows
from training.stranger_worker import load_folders
from training.test_finetuning import SMALL
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
)

from vocabx_utils import files, folders, locks, portable, runs
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.models import load_base_model, with_extra_rows
from vocabx_utils.portable import PortableError, save_tokenizer
from vocabx_utils.training import export, starts
from vocabx_utils.training.examples import encode
from vocabx_utils.training.export import ExportError, export_model, read_facts
from vocabx_utils.training.finetuning_stage import fine_tune
from vocabx_utils.training.stage_files import load_adapter
from vocabx_utils.training.starts import Start, from_rows, load_variant, open_start
from vocabx_utils.vocabulary.extend import add_tokens

SCALED = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
IDS = [5, 300, 17, 301, 44, 302, 8]


def strangers(log, *jobs):
    """Logits and words of each (folder, adapter or None), all loaded by one process without this package."""
    assert run_forked(load_folders, IDS, list(jobs), log=log) == [0], log.read_text()[-3000:]
    return [(torch.load(folder / "logits.pt"), json.loads((folder / "told.json").read_text())) for folder, _ in jobs]


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=torch.tensor([IDS])).logits[0]


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """A run with a phase-1 variant `mean_ce`, tuned through stages a and b."""
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))
    run, base = runs.open_run("tiny"), chat_base(rows=310)
    extension = extension_of(base)
    input_rows, head_rows = new_rows(base, 3)
    rows = {"input_rows": input_rows, "head_rows": head_rows}
    files.write_tensors(run.stage("03", "mean_ce") / "rows" / "epoch_02.safetensors", rows)
    return run, base, extension


def tune(run, variant, start, **options):
    config = FineTuneConfig(**{**SMALL, **options})
    train, validation = (
        encode(part, start.tokenizer)
        for part in (rendered_pairs(start.tokenizer)[:6], rendered_pairs(start.tokenizer)[6:9])
    )
    fine_tune(
        start.model,
        train,
        validation,
        run.stage("04", variant),
        config,
        limit=start.limit,
        new_ids=start.new_ids,
        origin=start.origin,
    )


def test_three_exports_load_in_a_process_without_us(tuned, tmp_path):
    run, base, extension = tuned
    rows, merged, apart = (tmp_path / way for way in ("rows", "merge", "separate"))
    export_model(from_rows(base, extension, *new_rows(base, 3)), rows, shard_size="20KB")
    tune(run, "mean_ce", open_start(run, "phase1:mean_ce", base, extension))
    model = load_variant(run, "mean_ce", base, extension).model
    expected = logits(model)
    assert not torch.allclose(expected, logits(model.unload()), atol=1e-3)  # the adapter does something
    for out in (merged, apart):
        export_model(load_variant(run, "mean_ce", base, extension), out, adapter=out.name)
    seen = strangers(tmp_path / "log", (rows, None), (merged, None), (apart, apart / "adapter"))
    phase_1 = logits(with_extra_rows(base, *new_rows(base, 3), base.vocab_size))
    for (there, (ids, text, chat)), here in zip(seen, (phase_1, expected, expected), strict=True):
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-5)
        assert 300 in ids and 301 in ids and text.startswith("Write groupby") and chat

    config = json.loads((rows / "config.json").read_text())
    assert config["vocab_size"] == 310 and config["tie_word_embeddings"] is False
    assert len(list(rows.glob("*.safetensors"))) > 1 and (rows / "model.safetensors.index.json").exists()
    assert AutoTokenizer.from_pretrained(rows).chat_template == CHAT
    assert read_facts(rows)["new_tokens"] == 3 and "untied" in (rows / "README.md").read_text()
    names = set(files.read_tensors(apart / "adapter" / "adapter_model.safetensors"))
    assert all("lora_" in name for name in names)  # no whole matrix slipped in
    stored = files.read_tensors(apart / "adapter" / "new_rows.safetensors")
    assert stored["input_rows"].shape == stored["head_rows"].shape == (3, 32)
    readme = (merged / "README.md").read_text()
    assert "mean_ce" in readme and "lora_rank 4" in readme and base.fingerprint in readme


def test_branch_after_stage_a_goes_through_c(tuned, tmp_path):
    run, base, extension = tuned
    tune(run, "mean_ce", open_start(run, "phase1:mean_ce", base, extension), stages=("a",))
    tune(run, "mean_ce_full", open_start(run, "mean_ce:a", base, extension), stages=("c",))
    model = load_variant(run, "mean_ce_full", base, extension).model
    after_a = load_variant(run, "mean_ce", base, extension).model
    assert torch.equal(model.lm_head.weight, after_a.lm_head.weight)
    assert not torch.equal(model.model.layers[3].mlp.up_proj.weight, after_a.model.layers[3].mlp.up_proj.weight)
    export_model(load_variant(run, "mean_ce_full", base, extension), tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-5, atol=1e-5)


def test_a_plain_model_with_rows_from_memory(tmp_path):
    """What `learn_rows` takes and returns is all that an export needs."""
    base = chat_base()
    start = from_rows(base.model, extension_of(base), *new_rows(base, 3))
    facts = export_model(start, tmp_path / "out")
    assert (facts["vocabulary"], facts["new_tokens"], facts["probe_changed"]) == (303, 3, False)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(loaded), logits(with_rows(base).model), rtol=1e-5, atol=1e-5)
    assert len(base.model.lm_head.weight) == 300


def test_base_control_without_new_tokens(tuned, tmp_path):
    run, base, _ = tuned
    tune(run, "base", open_start(run, "base", base, None), stages=("b",))
    facts = export_model(load_variant(run, "base", base), tmp_path / "out", pad_to=64)
    assert facts == read_facts(tmp_path / "out")
    assert (facts["new_tokens"], facts["rows"], facts["padding_rows"]) == (0, 320, 20)


def test_padding_rows_are_never_generated(tmp_path):
    base = chat_base()
    model = with_extra_rows(base, *new_rows(base, 3), base.vocab_size)
    padded = export._pad_rows(model, 303, 64)
    assert padded.lm_head.weight.shape == padded.model.embed_tokens.weight.shape == (320, 32)
    assert model.lm_head.weight.shape == (303, 32) and model.config.vocab_size == 303
    hidden = 50 * torch.randn(2000, 32, generator=torch.Generator().manual_seed(0))
    scores = padded.lm_head(hidden)
    assert (scores[:, 303:] <= scores[:, :303].max(1, keepdim=True).values).all()
    assert scores.argmax(1).max() < 303
    export_model(Start(model, with_words(base.tokenizer), range(300, 303)), tmp_path / "out", pad_to=64)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.generation_config.suppress_tokens == list(range(303, 320))
    torch.manual_seed(0)
    drawn = loaded.generate(torch.tensor([[5, 6]] * 8), do_sample=True, temperature=50.0, max_new_tokens=60)
    assert drawn.max() < 303
    torch.testing.assert_close(logits(loaded)[:, :303], logits(model), rtol=1e-5, atol=1e-5)


def test_rows_that_were_padding_can_be_generated_once_they_are_tokens(tmp_path):
    """An export suppresses its padding rows; the next extension puts new tokens on them."""
    export_model(with_rows(chat_base()), tmp_path / "first", pad_to=64)
    base = load_base_model(tmp_path / "first", device="cpu")
    base.model.generation_config.suppress_tokens = [7, *base.model.generation_config.suppress_tokens]
    extension = SimpleNamespace(extended=with_words(base.tokenizer, ["ravel"]), original=base.tokenizer, V=303, N=1)
    start = from_rows(base, extension, *new_rows(base, 1))
    assert start.model.generation_config.suppress_tokens == [7, *range(304, 320)]
    export_model(start, tmp_path / "second", pad_to=64)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "second")
    assert loaded.generation_config.suppress_tokens == [7, *range(304, 320)]
    assert base.model.generation_config.suppress_tokens == [7, *range(303, 320)]  # the base is left as it is


def test_generation_settings_that_transformers_loads_but_does_not_save_are_kept(tmp_path):
    base = chat_base()
    base.model.save_pretrained(tmp_path / "base")
    save_tokenizer(base.tokenizer, tmp_path / "base")
    settings = files.read_json(tmp_path / "base" / "generation_config.json") | {"temperature": 0.7, "top_p": 0.9}
    files.write_json(tmp_path / "base" / "generation_config.json", settings)
    base = load_base_model(tmp_path / "base", device="cpu")
    export_model(with_rows(base), tmp_path / "out", pad_to=64)
    written = files.read_json(tmp_path / "out" / "generation_config.json")
    assert written.pop("suppress_tokens") == list(range(303, 320))
    assert written == settings


def test_padded_base_never_shrinks_and_reserved_rows_are_counted(tmp_path):
    """B29: never fewer rows than before. B30: reserved rows that new tokens take over are overwritten and counted."""
    base = chat_base(rows=340)
    facts = export_model(with_rows(base), tmp_path / "out")
    assert (facts["rows"], facts["reserved_rows_used"], facts["padding_rows"]) == (340, 3, 37)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(loaded.lm_head.weight[300:303], new_rows(base, 3)[1])
    assert torch.equal(loaded.lm_head.weight[303:], base.head_rows[303:])


def test_tied_base_is_exported_untied(tmp_path):
    """B38: a base that tied its head is exported with two matrices, and says so."""
    base = chat_base(tie=True)
    input_rows, head_rows = new_rows(base, 3)
    export_model(with_rows(base), tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(loaded.lm_head.weight[300:], head_rows)
    assert torch.equal(loaded.model.embed_tokens.weight[300:], input_rows)
    assert loaded.config.tie_word_embeddings is False


def test_text_without_new_tokens_stays_the_same_before_training():
    """B32, B36: extending leaves the head as it was, and with it what the model writes."""
    base = chat_base()
    head_rows = base.head_rows.mean(0).expand(3, -1)
    model = with_extra_rows(base, new_rows(base, 3)[0], head_rows, base.vocab_size).eval()
    ids = torch.tensor([[4, 9, 33]])
    before, after = (m.generate(ids, max_new_tokens=12, do_sample=False)[0] for m in (base.model, model))
    assert torch.equal(before, after)
    assert torch.equal(model.lm_head.weight[:300], base.head_rows)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"adapter": "seperate"}, "adapter is 'seperate'; expected 'merge' or 'separate'"),
        ({"pad_to": 0}, "pad_to is 0; expected 1 or more"),
        ({"pad_to": -64}, "pad_to is -64; expected 1 or more"),
        ({"shard_size": "2 apples"}, "shard_size is '2 apples'; expected a number with KB"),
        ({"shard_size": "2GiB"}, "shard_size is '2GiB'"),
        ({"shard_size": "0GB"}, "shard_size is '0GB'"),
    ],
)
def test_settings_that_say_nothing_are_refused(tmp_path, wrong, told):
    with pytest.raises(ExportError, match=told):
        export_model(with_rows(chat_base()), tmp_path / "out", **wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_plain_model_is_refused(tmp_path):
    base = chat_base()
    for given in (base.model, base):
        with pytest.raises(ValueError, match=f"is given as a {type(given).__name__}; give what learn_rows"):
            export_model(given, tmp_path / "out")


@pytest.mark.parametrize("given", ["/nope", "/"])
def test_a_path_that_can_be_no_variant_is_refused(given):
    with pytest.raises(ValueError, match=r"is not a variant: expected RUN/04_fine_tuning/VARIANT"):
        starts.load_folder(given)


def test_a_size_is_refused_before_a_model_is_loaded(tmp_path):
    from click.testing import CliRunner

    from vocabx_utils.cli import main

    done = CliRunner().invoke(main, ["export", "/nope", str(tmp_path / "out"), "--shard-size", "2GiB"])
    assert done.exit_code == 1 and "shard_size is '2GiB'" in done.output


def test_folder_that_exists_is_refused(tmp_path):
    base = chat_base()
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(ExportError, match="exists and is not empty"):
        export_model(with_rows(base), out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_nothing_is_left_behind_when_writing_fails(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_write", full)
    base = chat_base()
    with pytest.raises(OSError, match="No space"):
        export_model(with_rows(base), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told_as_such_when_a_tokenizer_is_saved(tmp_path):
    (tmp_path / "tokenizer.json").symlink_to("/dev/full")
    with pytest.raises(OSError, match=rf"Could not write {tmp_path} \(No space left on device"):
        save_tokenizer(chat_tokenizer(), tmp_path)


def test_a_full_disk_is_told_as_such_when_weights_are_saved(tmp_path, monkeypatch):
    def full(*_arguments, **_options):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    base = chat_base()
    monkeypatch.setattr(type(base.model), "save_pretrained", full)
    with pytest.raises(OSError, match=r"Could not write .*No space left on device"):
        export_model(with_rows(base), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_written_folder_that_differs_is_caught(tmp_path, monkeypatch):
    original = export._write

    def damaged(model, *arguments):
        other = copy.deepcopy(model)
        other.lm_head.weight.data[7] += 1.0
        original(other, *arguments)

    monkeypatch.setattr(export, "_write", damaged)
    base = chat_base()
    with pytest.raises(ExportError, match="logits that differ"):
        export_model(with_rows(base), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_adapter_on_a_base_that_does_not_fit(tuned):
    """B39: the message names the fix."""
    run, base, extension = tuned
    tune(run, "mean_ce", open_start(run, "phase1:mean_ce", base, extension), stages=("b",))
    adapter = run.folder / "04_fine_tuning" / "mean_ce" / "b" / "adapter"
    with pytest.raises(ValueError, match=r"needs 3 new rows from id 300, the base has 300 rows: extend it first"):
        load_adapter(copy.deepcopy(chat_base().model), adapter, new_ids=range(300, 303))
    wide = chat_base(width=64)
    model = with_extra_rows(wide, *new_rows(wide, 3), 300)
    with pytest.raises(ValueError, match=r"width 32.*adapter for another base"):
        load_adapter(model, adapter, new_ids=range(300, 303))
    other = chat_base(seed=3, rows=310)
    with pytest.raises(ValueError, match="was made from tiny"):
        load_variant(run, "mean_ce", other, extension)


def test_rows_survive_in_the_adapter_alone(tuned):
    """B40: rows that moved during LoRA are stored with the adapter, and nothing but those rows."""
    run, base, extension = tuned
    tune(run, "mean_ce", open_start(run, "phase1:mean_ce", base, extension), stages=("b",), rows_in_b=True)
    expected = logits(load_variant(run, "mean_ce", base, extension).model)
    adapter = run.folder / "04_fine_tuning" / "mean_ce" / "b" / "adapter"
    fresh = with_extra_rows(base, torch.zeros(3, 32), torch.zeros(3, 32), 300)
    torch.testing.assert_close(logits(load_adapter(fresh, adapter, new_ids=range(300, 303))), expected)


# --- other releases of transformers: what `make test-matrix` tries for real ----------------------------------------


def test_settings_are_written_under_both_names(tmp_path):
    base = chat_base()
    base.tokenizer.add_special_tokens({"extra_special_tokens": ["<|tool|>"]})
    model = tiny_decoder(304, rope_theta=77.0, rope_scaling={"rope_type": "linear", "factor": 3.0})
    out = tmp_path / "out"
    export_model(Start(model, with_words(base.tokenizer), range(300, 304)), out)
    config = files.read_json(out / "config.json")
    assert config["rope_parameters"]["rope_theta"] == config["rope_theta"] == 77.0
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 3.0}
    assert config["dtype"] == config["torch_dtype"] == "float32"
    settings = files.read_json(out / "tokenizer_config.json")
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["additional_special_tokens"] == ["<|tool|>"] and "extra_special_tokens" not in settings
    assert AutoTokenizer.from_pretrained(out).extra_special_tokens == ["<|tool|>"]


def test_a_head_that_was_tied_is_written_under_the_name_that_older_releases_know(tmp_path):
    """Release 5 turns back only the names that it met while loading, and a tied head is in no file."""
    config = GPTNeoXConfig(
        vocab_size=300,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=48,
        tie_word_embeddings=True,
    )
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "base")
    save_tokenizer(chat_tokenizer(), tmp_path / "base")
    base = load_base_model(tmp_path / "base", device="cpu")
    export_model(with_rows(base), tmp_path / "out")
    assert "embed_out.weight" in files.read_tensors(tmp_path / "out" / "model.safetensors")


def test_a_family_that_was_not_tried_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(portable, "FAMILIES", portable.FAMILIES - {"llama"})
    base = chat_base()
    with pytest.raises(PortableError, match=r"model type 'llama'.*not tried.*qwen2"):
        export_model(with_rows(base), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (Gemma3TextConfig(rope_parameters={"sliding_attention": SCALED, "full_attention": SCALED}), "sliding layers"),
        (LlamaConfig(rope_parameters={"rope_type": "proportional", "rope_theta": 1e4}), "rope_type 'proportional'"),
    ],
)
def test_rotary_embeddings_that_release_4_has_no_words_for_are_refused(config, named):
    with pytest.raises(PortableError, match=named):
        portable.check_portable(config)


def test_a_tokenizer_that_others_would_open_as_another_is_refused(tmp_path):
    """Release 5 opens every tokenizer of model type qwen2 with its own class, which decodes added tokens as bytes."""
    extension = add_tokens(chat_tokenizer(), [" groupby", "éré"], "added")
    with pytest.raises(ExportError, match=r"'éré' has ids .* AutoTokenizer opens as Qwen2Tokenizer"):
        model = tiny_decoder(302, family="qwen2")
        export_model(Start(model, extension.extended, extension.new_ids), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_probe_tells_whether_ids_change():
    tokenizer = chat_base().tokenizer
    assert not export._probe_changed(tokenizer, with_words(tokenizer))
    assert export._probe_changed(tokenizer, with_words(tokenizer, ("return", "3333")))


def test_unfinished_variant_names_the_notebook(tuned, tmp_path):
    run, base, extension = tuned
    with pytest.raises(runs.MissingStageError, match="04_fine_tuning"):
        load_variant(run, "nothing", base, extension)


def test_command(tuned, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from vocabx_utils.cli import main

    run, base, extension = tuned
    monkeypatch.setattr(starts, "load_base_model", lambda *_arguments, **_options: base)
    monkeypatch.setattr(starts, "load_extension", lambda _folder: extension)
    (run.stage("01") / "extension").mkdir()
    tune(run, "mean_ce", open_start(run, "phase1:mean_ce", base, extension), stages=("b",))
    variant, out = run.folder / "04_fine_tuning" / "mean_ce", tmp_path / "out"
    done = CliRunner().invoke(main, ["export", str(variant), str(out), "--pad-to", "64"])
    assert done.exit_code == 0, done.output
    assert "320 rows, 3 new tokens, 17 padding rows" in done.output
    again = CliRunner().invoke(main, ["export", str(variant), str(out)])
    assert again.exit_code == 1 and "exists and is not empty" in again.output
    wrong = CliRunner().invoke(main, ["export", str(run.folder), str(tmp_path / "other")])
    assert wrong.exit_code == 1 and "expected RUN/04_fine_tuning/VARIANT" in wrong.output

    phase_1 = run.stage("03", "mean_ce")
    runs.claim(phase_1, {"model": base.fingerprint, "dtype": "torch.float32"})
    runs.finish(phase_1)
    done = CliRunner().invoke(main, ["export", str(phase_1), str(tmp_path / "rows")])
    assert done.exit_code == 0, done.output
    assert torch.equal(
        AutoModelForCausalLM.from_pretrained(tmp_path / "rows").lm_head.weight[300:303], new_rows(base, 3)[1]
    )
    files.write_json(phase_1 / "provenance.json", {"key": {"model": "other", "dtype": "torch.float32"}})
    other = CliRunner().invoke(main, ["export", str(phase_1), str(tmp_path / "more")])
    assert other.exit_code == 1 and "--model" in other.output


def test_a_killed_export_leaves_nothing_behind_the_next_one(tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    assert run_forked(export_and_die, out, log=log) == [-9], log.read_text()[-3000:]
    log.unlink()
    [left] = tmp_path.glob(".out-*")
    assert (left / "model.safetensors").exists()
    other = tmp_path / ".out-b-1234567x"  # of an export to another folder, which may still be at work
    other.mkdir()
    base = chat_base()
    export_model(with_rows(base), out)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".out-b-1234567x", "out"]


def test_an_export_that_does_not_fit_is_refused_before_it_is_written(tmp_path, monkeypatch):
    base = chat_base()
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: SimpleNamespace(free=folders.MARGIN + 1000))
    with pytest.raises(folders.SpaceError, match=r"the exported model needs .* another disk"):
        export_model(with_rows(base), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_two_exports_to_one_folder_do_not_work_at_once(tmp_path):
    base = chat_base()
    holder = "import sys; from vocabx_utils import locks; locks.hold(sys.argv[1]); print('held', flush=True); input()"
    command = [sys.executable, "-c", holder, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(locks.BusyError, match=f"process {process.pid} on"):
            export_model(with_rows(base), tmp_path / "out")
        process.kill()
    export_model(with_rows(base), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_damaged_adapter_is_refused_with_its_path(tuned, tmp_path):
    run, base, extension = tuned
    tune(run, "mean_ce", open_start(run, "phase1:mean_ce", base, extension), stages=("b",))
    path = run.stage("04", "mean_ce") / "b" / "adapter" / "adapter_model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(files.DamagedFileError, match=r"adapter_model\.safetensors is damaged"):
        load_variant(run, "mean_ce", base, extension)
