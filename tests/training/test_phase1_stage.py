"""The stage behind notebook 03, from notebook 01's files to verdicts, with a tiny model in a folder of its own."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
import yaml
from forked import run_forked
from matplotlib import pyplot as plt
from tiny import ROWS, V, byte_level_bpe, new_tokens, texts, tiny_model, tokenizers
from training.launcher_worker import accelerate_launch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vocabx_utils import files, models, runs, tokenizer_files
from vocabx_utils.config import Phase1Config
from vocabx_utils.corpus import Pair
from vocabx_utils.figures import theme
from vocabx_utils.paths import notebooks_root, project_root
from vocabx_utils.settings import ConfigError
from vocabx_utils.training.__main__ import main
from vocabx_utils.training.continuations import continuations, sample_after
from vocabx_utils.training.phase1_stage import Phase1Stage, final_model, prepare_phase1, token_table, train_stage
from vocabx_utils.training.starts import from_rows, open_start
from vocabx_utils.training.timing import time_schemes
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.tokens import load_extension

SETTINGS = {
    "run_name": "tiny",
    "device": "cpu",
    "variants": ["mean_untrained", "mean_ce", "mean_kl_last"],
    "learning_rate": 2.0e-2,
    "epochs": 3,
    "batch_size": 4,
    "window": 24,
    "train_windows": 24,
    "validation_windows": 12,
    "require_improvement": False,
}


@pytest.fixture(scope="module")
def stage_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs folder with a finished notebook 01, beside a model folder."""
    root = tmp_path_factory.mktemp("stage")
    base = tiny_model()
    base.model.config.update({"vocab_size": ROWS})
    base.model.save_pretrained(root / "model")
    tokenizers().original.save_pretrained(root / "model")
    names = tokenizers().extended.convert_ids_to_tokens([token.id for token in new_tokens()])
    words = [name.replace("Ġ", " ") for name in names]
    extension = add_tokens(tokenizers().original, words)
    folder = root / "runs" / "tiny" / "01_tokenizer_extension"
    extension.save(folder / "extension")
    pairs = [Pair(text.split(":")[0], text) for text in texts(60)]
    files.write_jsonl(folder / "splits" / "train.jsonl", [asdict(pair) for pair in pairs[:40]])
    files.write_jsonl(folder / "splits" / "validation.jsonl", [asdict(pair) for pair in pairs[40:]])
    files.write_json(folder / "corpus.json", {"template": "thesis"})
    files.write_json(folder / "key.json", {"model": "first model"})
    return root


def config(root: Path) -> Phase1Config:
    return Phase1Config.from_params(**SETTINGS, model=str(root / "model"))


def test_a_missing_notebook_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path))
    with pytest.raises(runs.MissingStageError, match="01_tokenizer_extension"):
        prepare_phase1(runs.open_run("nothing"), Phase1Config())


def test_another_tokenizer_with_the_same_number_of_ids_is_refused(
    stage_one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama 2 and Mistral 7B are such a pair: V agrees, and the ids of a text do not."""
    other = byte_level_bpe([text[::-1] for text in texts()], V, ["<eos>"], eos_token="<eos>", pad_token="<eos>")
    assert len(other) == len(tokenizers().original)
    shutil.copytree(stage_one / "model", tmp_path / "other")
    other.save_pretrained(tmp_path / "other")
    monkeypatch.setenv("VOCABX_RUNS", str(stage_one / "runs"))
    run = runs.open_run("tiny")
    first = r"extension of run 'tiny' \(made with model 'first model'\)"
    with pytest.raises(models.ModelError, match=rf"{first}.*'{tmp_path / 'other'}'"):
        prepare_phase1(run, Phase1Config.from_params(**SETTINGS, model=str(tmp_path / "other")))
    base = models.load_base_model(tmp_path / "other", device="cpu")
    extension = load_extension(run.require("01", "extension"))
    rows = torch.zeros(extension.N, base.width)
    with pytest.raises(models.ModelError, match="extends another tokenizer"):
        tokenizer_files.require_run_tokenizer(base, run)
    with pytest.raises(models.ModelError, match="extends another tokenizer"):
        from_rows(base, extension, rows, rows)
    files.write_tensors(
        tmp_path / "run" / "03_phase1_training" / "v" / "rows" / "epoch_00.safetensors",
        {"input_rows": rows, "head_rows": rows},
    )
    with pytest.raises(models.ModelError, match="extends another tokenizer"):
        open_start(runs.Run("run", tmp_path / "run"), "phase1:v", base, extension)
    tokenizer_files.require_run_tokenizer(models.load_base_model(stage_one / "model", device="cpu"), run)


def test_epochs_from_a_hundred_on_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    base = tiny_model()
    run = runs.Run("tiny", tmp_path)
    words = [name.replace("Ġ", " ") for name in tokenizers().extended.convert_ids_to_tokens([V, V + 1])]
    extension = add_tokens(tokenizers().original, words)
    for epoch in (98, 99, 100, 101):
        rows = torch.full((extension.N, base.width), float(epoch))
        files.write_tensors(
            run.stage("03", "v") / "rows" / f"epoch_{epoch:02d}.safetensors", {"input_rows": rows, "head_rows": rows}
        )
    start = open_start(run, "phase1:v", base, extension)
    assert start.origin["rows"] == "epoch_101.safetensors" and float(start.model.lm_head.weight[V, 0].detach()) == 101
    stage = Phase1Stage(run.stage("03"), base, extension, None)  # type: ignore[arg-type]
    assert float(final_model(stage, "v").input_rows[0, 0].detach()) == 101
    assert float(final_model(stage, "v", 99).input_rows[0, 0].detach()) == 99


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_named_before_the_teacher_runs(
    stage_one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(stage_one / "runs"))
    base = tiny_model()
    with torch.no_grad():
        base.model.model.layers[1].mlp.up_proj.weight[3, 4] = value
    told: list[str] = []
    with pytest.raises(
        models.ModelError, match=r"layers\.1\.mlp\.up_proj\.weight hold values that are infinite or NaN"
    ):
        prepare_phase1(runs.open_run("tiny"), config(stage_one), base=base, tell=told.append)
    assert not told
    base.model.save_pretrained(tmp_path / "model")
    tokenizers().original.save_pretrained(tmp_path / "model")
    with pytest.raises(models.ModelError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        models.load_base_model(tmp_path / "model", device="cpu")


def test_layers_that_do_not_exist_are_refused_before_the_teacher_runs(
    stage_one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(stage_one / "runs"))
    changed = Phase1Config.from_params(
        **SETTINGS | {"variants": ["mean_hidden_last_l7"]}, model=str(stage_one / "model")
    )
    told: list[str] = []
    with pytest.raises(ValueError, match=r"layers \[7\].*layers 0 to 2"):
        prepare_phase1(runs.open_run("tiny"), changed, tell=told.append)
    assert not told


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"learning_rat": 0.01}, r"'learning_rat' is no setting.*Did you mean 'learning_rate'"),
        ({"03": {"learning_rat": 0.01}}, r"unknown learning_rat"),
    ],
)
def test_misspelt_settings_of_the_command_are_refused(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        main(["phase1", "--config", str(path)])


def test_the_stage_from_files_to_tables(stage_one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(stage_one / "runs"))
    told: list[str] = []
    run = runs.open_run("tiny")
    stage = prepare_phase1(run, config(stage_one), tell=told.append)
    assert len(told) == 3 and "% of them new" in told[-1] and stage.extension.V == V
    results = train_stage(stage, config(stage_one))
    assert run.variants("03") == sorted(SETTINGS["variants"])
    starts = [result.metrics[0]["kl_last"] for result in results.values()]
    assert len(set(starts)) == 1
    sealed = runs.read_provenance(stage.folder / "mean_kl_last")
    assert sealed["train_spans"]["new_tokens"] == stage.data.train.counts().sum()
    assert not {"phrase_dropout", "head_learning_rate"} & sealed["key"]["settings"].keys()  # older folders go on

    table = token_table(stage, "mean_kl_last")
    seen = table.train_count > 0
    assert (table.moved[seen] > 0).all() and (table.moved[~seen] == 0).all()
    weighed = table.dropna(subset=["kl_end"])
    pooled = (weighed.kl_end * weighed.places).sum() / weighed.places.sum()
    assert pooled == pytest.approx(results["mean_kl_last"].metrics[-1]["kl_last"], rel=1e-4)

    model = final_model(stage, "mean_kl_last")
    after = continuations(model, stage.data.validation, stage.data.validation_teacher, stage.extension.tokens)
    summary = after.summary()
    assert summary["places"] == results["mean_kl_last"].metrics[-1]["n_last"]
    naive = []
    for example in stage.data.validation.examples:
        with torch.no_grad():
            best = model.logits(torch.from_numpy(example.ids)[None])[0].argmax(-1)
        naive += [(int(example.ids[at]), int(best[at])) for at in example.new_at(V)]
    assert sorted(naive) == sorted(zip(after.token.tolist(), after.student.tolist(), strict=True))
    prefixes = [example.ids[:at] for at in (3, 9, 6)]
    together = sample_after(model, prefixes, 3)
    assert together == [sample_after(model, [prefix], 3)[0] for prefix in prefixes]
    assert [line[0] for line in together] == [int(best[at - 1]) for at in (3, 9, 6)]
    once, each = time_schemes(model, stage.data, [0, 1, 2], repeats=2)
    assert len(once) == len(each) == 2 and min(once + each) > 0


def launch(*words: str, folder: Path, log: Path) -> int:
    """Start the command for two processes with accelerate's launcher; returns its exit status."""
    words = (
        "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", *words,
    )  # fmt: skip
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "VOCABX_RUNS": os.environ["VOCABX_RUNS"]}
    [status] = run_forked(accelerate_launch, folder, words, log=log, environment=environment)
    return status


def train(profile: Path, way: str, log: Path) -> None:
    """Train in two processes: `parallel` started by the launcher, `sharded` as the launcher starts them."""
    words = ["phase1", "--config", str(profile)]
    if way == "sharded":
        runs_folder = {"VOCABX_RUNS": os.environ["VOCABX_RUNS"]}
        assert run_forked(main, words, log=log, count=2, environment=runs_folder) == [0, 0], log.read_text()[-3000:]
        return
    # --multi_gpu starts the processes also where there is no GPU; they then talk through gloo
    module = ["--multi_gpu", "--main_process_port", "0", "-m", "vocabx_utils.training"]
    assert launch(*module, *words, folder=profile.parent, log=log) == 0, log.read_text()[-3000:]


@pytest.mark.parametrize("way", ["parallel", "sharded"])
def test_accelerate_launch_equals_one_process(
    stage_one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(stage_one / "runs"))
    stage = prepare_phase1(runs.open_run("tiny"), config(stage_one), tell=lambda _: None)
    one = train_stage(stage, config(stage_one))["mean_kl_last"]
    other = stage_one / "runs" / way / "01_tokenizer_extension"
    other.parent.mkdir()
    other.symlink_to(stage_one / "runs" / "tiny" / "01_tokenizer_extension")
    profile = stage_one / f"{way}.yaml"
    values = SETTINGS | {"run_name": way, "variants": ["mean_kl_last"], "model": str(stage_one / "model")}
    if way == "sharded":
        values |= {"sharded": True, "gradient_checkpointing": "always"}
    profile.write_text(yaml.safe_dump({"03": values}), encoding="utf-8")
    train(profile, way, tmp_path / "log")
    two = stage_one / "runs" / way / "03_phase1_training" / "mean_kl_last"
    assert runs.read_provenance(two)["processes"] == 2
    curves = [[row["input_loss"] for row in files.read_jsonl(f / "steps.jsonl")] for f in (one.folder, two)]
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-4)


def test_a_launcher_that_starts_one_process_for_two_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, log = ("-m", "vocabx_utils.training", "phase1", "--config", "quick"), tmp_path / "log"
    assert launch("--cpu", *words, folder=tmp_path, log=log) != 0
    assert "asked for several processes and started one" in log.read_text()
    assert not list((tmp_path / "runs").glob("*"))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # what that launcher sets
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(RuntimeError, match="asked for several processes and started one"):
        main(["finetune", "--config", "quick"])


def notebook_code(name: str, **parameters: Any) -> str:
    """Code of a notebook's cells in order, with other values for some of its parameters."""
    cells = json.loads((notebooks_root() / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        if cell["cell_type"] == "code":
            parts.append("".join(cell["source"]))
            if "parameters" in cell["metadata"].get("tags", []):
                parts += [f"{key} = {value!r}" for key, value in parameters.items()]
    return "\n".join(parts)


@pytest.mark.parametrize("variants", [["mean_kl_last"], ["mean_kl_first"], ["random_untrained"]])
def test_notebook_03_runs_to_its_end_with_any_variants(
    stage_one: Path, monkeypatch: pytest.MonkeyPatch, variants: list[str]
) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(stage_one / "runs"))
    name = f"only_{variants[0]}"
    other = stage_one / "runs" / name / "01_tokenizer_extension"
    other.parent.mkdir()
    other.symlink_to(stage_one / "runs" / "tiny" / "01_tokenizer_extension")
    values = SETTINGS | {"run_name": name, "variants": variants, "model": str(stage_one / "model"), "epochs": 1}
    # laid out once; to write each in three forms takes three quarters of the notebook's time
    monkeypatch.setattr(theme, "show_figure", lambda figure, *_: figure.draw_without_rendering())
    space: dict[str, Any] = {}
    with matplotlib.rc_context():
        exec(compile(notebook_code("03_phase1_training", **values), "notebook 03", "exec"), space)
        plt.close("all")
    assert space["probe"] == variants[0]
    assert files.read_json(stage_one / "runs" / name / "03_phase1_training" / "verdicts.json")


def test_the_example_of_the_documentation_runs(
    stage_one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (project_root() / "docs" / "python.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    named = code.replace('MODEL = "smollm2-135m"', f"MODEL = {str(stage_one / 'model')!r}")
    assert named != code
    monkeypatch.chdir(tmp_path)
    files.write_jsonl("pairs.jsonl", [{"query": text.split(":")[0], "answer": text} for text in texts(60)])
    exec(compile(named, "docs/python.md", "exec"), {})
    before, after = (float(line.split()[-2]) for line in capsys.readouterr().out.splitlines() if " nats" in line)
    assert after < before
    assert AutoModelForCausalLM.from_pretrained("exported").config.vocab_size >= V + 8
    assert len(AutoTokenizer.from_pretrained("exported")) == V + 8
