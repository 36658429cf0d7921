"""An adaptation from end to end: what it leaves, what it refuses, and how it goes on after a stop."""

from __future__ import annotations

import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from adaptation.adaptation_parts import write_sources
from adaptation.adaptation_worker import adapt_and_die
from adaptation.conftest import Finished
from forked import run_forked
from safetensors.torch import load_file, save_file
from tiny import tiny_family, tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from vocabx_utils import folders
from vocabx_utils.adaptation import learning, measures
from vocabx_utils.adaptation.run import adapt
from vocabx_utils.adaptation.steps import WORK, OutError
from vocabx_utils.files import read_json, write_jsonl
from vocabx_utils.locks import BusyError, writing
from vocabx_utils.models import ModelError
from vocabx_utils.runs import KeyMismatchError
from vocabx_utils.source_tree import CorpusError
from vocabx_utils.student import UnsupportedModelError
from vocabx_utils.texts import TokenizerError

ROOT = Path(__file__).resolve().parents[2]
GIVEN: dict[str, Any] = {"n": 6, "learning_rate": 0.01, "device": "cpu", "new_tokens": 8}


def quiet(line: str) -> None:
    pass


def numbers(summary: dict[str, Any]) -> dict[str, Any]:
    """What two equal adaptations share: everything but times, rates of generation, and where and when it was."""
    kept = {k: summary[k] for k in ("likelihood", "divergence", "packing", "passage", "tokens", "settings", "texts")}
    kept["metrics"] = [{k: v for k, v in row.items() if k != "seconds"} for row in summary["rows"]["metrics"]]
    kept["prompts"] = summary["generation"]["prompts"]
    return kept


def test_what_is_left_is_a_model_that_transformers_opens(finished: Finished) -> None:
    made = finished.made
    tokenizer = AutoTokenizer.from_pretrained(made.model)
    model = AutoModelForCausalLM.from_pretrained(made.model)
    assert len(tokenizer) == len(AutoTokenizer.from_pretrained(finished.model)) + 6
    assert model.config.vocab_size >= len(tokenizer)
    ids = tokenizer("def window_season(filter):\n    return", return_tensors="pt")["input_ids"]
    assert (ids >= len(tokenizer) - 6).any()
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape[1] > ids.shape[1]
    rows = learning.rows_of(next((made.folder / WORK).glob("rows-*")))
    assert torch.equal(model.get_input_embeddings().weight[len(tokenizer) - 6 : len(tokenizer)], rows[0])


def test_every_part_is_told_with_what_it_costs_first(finished: Finished) -> None:
    told = "\n".join(finished.told)
    order = ["train: ", "GB at the peak", "new tokens …", "Gain on held-out files", "learning rate …", "chosen: rate",
             "learning rows …", "model folder …", "bits per byte …", "continuations …", "written: "]  # fmt: skip
    places = [told.index(words) for words in order]
    assert places == sorted(places)


def test_a_finished_folder_is_left_as_it_is(finished: Finished) -> None:
    told: list[str] = []
    before = {p: p.stat().st_mtime_ns for p in finished.made.folder.rglob("*") if p.is_file()}
    again = adapt(finished.model, finished.source, finished.made.folder, n=6, device="cpu", new_tokens=8,
                  tell=told.append)  # fmt: skip
    assert again.summary == finished.made.summary and "nothing to do" in told[-1]
    with pytest.raises(KeyMismatchError, match="n: 6 there, 7 now"):
        adapt(finished.model, finished.source, finished.made.folder, n=7, new_tokens=8, tell=quiet)
    after = {p: p.stat().st_mtime_ns for p in finished.made.folder.rglob("*") if p.is_file()}
    assert before == after


def test_a_model_is_known_by_its_files_and_not_by_how_it_was_typed(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, told = finished.made.folder, list[str]()
    given: dict[str, Any] = {"n": 6, "device": "cpu", "new_tokens": 8}
    copy = shutil.copytree(finished.model, tmp_path / "tm")
    (copy / "README.md").write_text("what nobody loads")
    monkeypatch.chdir(tmp_path)
    adapt("./tm", finished.source, out, tell=told.append, **given)
    assert "nothing to do" in told[-1]
    weights = load_file(copy / "model.safetensors")
    save_file({k: v + 1 for k, v in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(KeyMismatchError, match=r"model_files: '.*' there, '.*' now"):
        adapt("./tm", finished.source, out, tell=quiet, **given)


def test_a_dry_run_stops_before_the_weights_and_the_command_goes_on_from_it(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, told = write_sources(tmp_path / "src"), list[str]()
    with monkeypatch.context() as patched:
        patched.setattr("vocabx_utils.adaptation.run.load_base_model", None)
        dry = adapt(tiny_folder, source, tmp_path / "out", dry_run=True, tell=told.append, **GIVEN)
    assert dry.summary["tokens"]["gains"][-1]["saved_per_1000"] > 10 and not dry.model.exists()
    assert "saved_per_1000" in "\n".join(told) and str(dry) == "6 new tokens proposed; nothing was trained"
    made = adapt(tiny_folder, source, tmp_path / "out", tell=told.append, **GIVEN)
    assert any(line.startswith("1/7 new tokens: done before") for line in told) and made.model.is_dir()


def test_lora_on_top_of_the_rows(tmp_path: Path, tiny_folder: Path) -> None:
    source = write_sources(tmp_path / "src")
    made = adapt(tiny_folder, source, tmp_path / "out", fine_tune="lora", lora_rank=4, strategy="auto", tell=quiet,
                 **GIVEN)  # fmt: skip
    losses = made.summary["lora"]["losses"]
    assert losses[-1] < losses[0]
    assert made.summary["tokens"]["choice"].startswith("strategy phrases, chosen on the validation files: merges saves")
    names = [row["model"] for row in made.summary["likelihood"]["rows"]]
    assert names == ["base", "before", "after"]
    bits = {row["model"]: row["bits_per_byte"] for row in made.summary["likelihood"]["rows"]}
    assert bits["after"] < bits["base"]  # LoRA has read text like it


class Stop(Exception):
    """What a test stops a run with."""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> tuple[Path, dict[str, Any]]:
    """A source, and what an adaptation to it says that was never stopped."""
    folder = tmp_path_factory.mktemp("unbroken")
    source = write_sources(folder / "src")
    return source, adapt(tiny_folder, source, folder / "out", tell=quiet, **GIVEN).summary


@pytest.mark.parametrize("place", ["train", "tune", "export", "likelihood", "continuations"])
def test_a_stopped_run_goes_on_and_ends_with_the_same_numbers(
    tmp_path: Path,
    tiny_folder: Path,
    unbroken: tuple[Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    (source, whole), given = unbroken, GIVEN
    if place == "tune":
        given = GIVEN | {"fine_tune": "lora", "lora_rank": 2}
        whole = adapt(tiny_folder, source, tmp_path / "whole", tell=quiet, **given).summary

    def stop(*_: Any, **__: Any) -> None:
        raise Stop

    names = {"train": "train_variant", "tune": "fine_tune", "export": "export_model"}
    with monkeypatch.context() as patched:
        patched.setattr(learning if place in names else measures, names.get(place, place), stop)
        with pytest.raises(Stop):
            adapt(tiny_folder, source, tmp_path / "out", tell=quiet, **given)
    told: list[str] = []
    made = adapt(tiny_folder, source, tmp_path / "out", tell=told.append, **given)
    assert numbers(made.summary) == numbers(whole)
    assert any("done before" in line for line in told) and any("(going on)" in line for line in told)


def test_a_killed_process_goes_on_from_its_checkpoint(tmp_path: Path, tiny_folder: Path) -> None:
    source = write_sources(tmp_path / "src")
    options = GIVEN | {"epochs": 3}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    adapt(tiny_folder, source, whole, tell=quiet, **options)
    log = tmp_path / "log"
    [status] = run_forked(adapt_and_die, tiny_folder, source, killed, options, log=log)
    assert status == -signal.SIGKILL, log.read_text()
    assert not list(killed.glob(f"{WORK}/rows-*/done.json"))
    told: list[str] = []
    adapt(tiny_folder, source, killed, tell=told.append, **options)
    assert any("learning rows (going on) …" in line for line in told)
    assert any("new tokens: done before" in line for line in told)
    first, other = (read_json(out / "summary.json") for out in (whole, killed))
    assert numbers(first) == numbers(other)


def test_a_full_disk_is_told_before_anything_is_done(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "MARGIN", 1 << 60)
    told: list[str] = []
    with pytest.raises(folders.SpaceError, match=r"the adaptation needs .* give an --out on another disk"):
        adapt(tiny_folder, write_sources(tmp_path / "src"), tmp_path / "out", tell=told.append, **GIVEN)
    assert not (tmp_path / "out").exists() and not any("new tokens" in line for line in told)


def test_bad_input_is_refused_and_nothing_is_lost(tmp_path: Path, tiny_folder: Path) -> None:
    source = write_sources(tmp_path / "src")
    empty = tmp_path / "empty"
    empty.mkdir()
    out = tmp_path / "out"
    with pytest.raises(CorpusError, match="No file below"):
        adapt(tiny_folder, empty, out, tell=quiet, **GIVEN)
    with pytest.raises(CorpusError, match="of 1 file; expected three or more"):
        adapt(tiny_folder, source, out, glob="00.py", tell=quiet, **GIVEN)
    with pytest.raises(
        TokenizerError, match=r"5000 new tokens were asked for; the training files offer \d+ that occur 4"
    ):
        adapt(tiny_folder, source, out, tell=quiet, **GIVEN | {"n": 5000})
    with pytest.raises(ModelError, match="not a folder"):
        adapt(tmp_path / "nowhere", source, out, tell=quiet, **GIVEN)
    with pytest.raises(OutError, match="lies inside"):
        adapt(tiny_folder, source, source / "out", tell=quiet, **GIVEN)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "results.csv").write_text("1,2")
    with pytest.raises(OutError, match="not made by `vocabx adapt`"):
        adapt(tiny_folder, source, kept, tell=quiet, **GIVEN)
    assert [p.name for p in kept.iterdir()] == ["results.csv"]
    with writing(out / WORK):
        [status] = run_forked(partial(adapt, n=6, learning_rate=0.01), tiny_folder, source, out, log=tmp_path / "log")
    told = (tmp_path / "log").read_text()
    assert status != 0 and BusyError.__name__ in told and f"process {os.getpid()}" in told


def test_a_model_that_phase_1_refuses_is_refused_before_the_long_parts(tmp_path: Path) -> None:
    source, told = write_sources(tmp_path / "src"), list[str]()
    model = tiny_family("llama", 308)
    for name in ("scaled", "damaged"):
        tokenizers().original.save_pretrained(tmp_path / name)
    model.config.logits_to_scale = 3.0
    model.save_pretrained(tmp_path / "scaled")
    with pytest.raises(UnsupportedModelError, match="logits_to_scale"):
        adapt(tmp_path / "scaled", source, tmp_path / "out", tell=told.append, **GIVEN)
    assert not any("new tokens" in line for line in told)  # the configuration is enough
    del model.config.logits_to_scale
    model.model.layers[1].mlp.up_proj.weight.data[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "damaged")
    with pytest.raises(ModelError, match="values that are infinite or NaN"):
        adapt(tmp_path / "damaged", source, tmp_path / "out", tell=told.append, **GIVEN)
    assert not any("learning" in line for line in told)


def test_a_gain_below_a_percent_is_told_with_its_reasons(tmp_path: Path, tiny_folder: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for number in range(12):  # numbers, which no merge joins, and one word
        digits = "\n".join(f"{(k * 7919 + number) % 1000}" for k in range(1500))
        (source / f"{number}.txt").write_text(f"{digits}\nqwertyuiop qwertyuiop\n")
    told: list[str] = []
    dry = adapt(tiny_folder, source, tmp_path / "out", n=1, dry_run=True, device="cpu", tell=told.append)
    [warning] = dry.summary["warnings"]
    assert re.match(
        r"not worth it: 1 new tokens save 0\.\d+ % .* Here is why: .*bytes of this text into a token", warning
    )
    assert f"warning: {warning}" in told


def test_pairs_are_learned_in_the_models_own_form(tmp_path: Path, tiny_folder: Path) -> None:
    source = write_sources(tmp_path / "src")
    rows = [
        {"instruction": f"Write part {number} of {path.name}.", "output": text, "source": path.name}
        for path in sorted(source.iterdir())
        for number, text in enumerate(path.read_text(encoding="utf-8").split("def ")[1:])
    ]
    write_jsonl(tmp_path / "pairs.jsonl", rows)
    made = adapt(tiny_folder, tmp_path / "pairs.jsonl", tmp_path / "out", fine_tune="lora", lora_rank=2, tell=quiet,
                 **GIVEN)  # fmt: skip
    assert made.summary["texts"]["held_out"]["texts"] > made.summary["texts"]["held_out"]["files"]
    prompts = [row["prompt"] for row in made.summary["generation"]["prompts"]]
    assert all(prompt.endswith("### Answer:\n") for prompt in prompts)
    assert [row["type"] for row in made.summary["tokens"]["gains"]] == ["pairs"]
    assert not any("### Instruction" in row["text"] for row in made.summary["tokens"]["top"])


def test_the_example_of_the_page_runs_as_it_stands(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "adapt.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    named = code.replace('"smollm2-135m"', repr(str(tiny_folder)))
    assert named != code
    monkeypatch.chdir(tmp_path)
    (write_sources(tmp_path / "src") / "00.py").rename(tmp_path / "src" / "main.py")
    exec(compile(named, "adapt.md", "exec"), {})
    assert "Bits per byte are" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained("my-model/model").config.vocab_size > 0
