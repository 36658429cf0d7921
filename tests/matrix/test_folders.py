"""Folders written here load on machines without this package, in two releases of transformers, and compute the same.

Run by `make test-matrix` and not by `make test`: it needs a package index once, and minutes.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from fixtures.alignment_tokenizers import FAMILIES as KINDS
from fixtures.alignment_tokenizers import LINES, make_tokenizer
from matrix import stranger
from matrix.matrix_environments import PINS, environment
from matrix.matrix_models import CASES, LENGTH, tiny_model
from safetensors.torch import load_file
from tiny import CHAT, byte_level_bpe
from tokenizers import normalizers

from vocabx_utils.cli.tokens import tokens as tokens_command
from vocabx_utils.gguf import PRE_TOKENIZERS
from vocabx_utils.layers import NoIndexError
from vocabx_utils.models import load_base_model, with_extra_rows
from vocabx_utils.portable import FAMILIES, save_tokenizer
from vocabx_utils.training.export import export_model
from vocabx_utils.training.starts import Start
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.tokens import load_extension

STRATEGIES = ("merges", "added")
NEW = [" groupby", " fillna", "éré"]
TEXTS = [
    "import numpy as np\n",
    "x = df.groupby(by='x').fillna(0)\n",
    "    deep\n        deeper\n\n\n\tand a tab\r\n",
    "naïve café, été, Straße",
    "e\u0301 combining, \u00a0 hard space",
    "日本語のテキスト 数据 каша ข้อมูล",
    "emoji 🙂 and 👨‍👩‍👧 family",
    "1234567890 3.14 0x1F 1_000",
    "We'll I'm you'RE they've",
    "def f(x):\n    return x  # groupby groupby\n",
    "",
    " ",
    "  two",
    "groupby",
    " groupby",
    "xgroupby fillnax",
    "été rérété éré éré",
    "<|end|> spelt out </s>",
    "nul \x00 and bell \x07",
    "a" * 70,
]
MESSAGES = [{"role": "user", "content": "Write groupby."}, {"role": "assistant", "content": "df.groupby"}]
GENERATION = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.3, "do_sample": True}
ALL = [f"{case}-{tie}-{way}" for case, tie, way in product(CASES, ("tied", "untied"), STRATEGIES)]
# `added` refuses a tokenizer that puts a space before each stretch of text: that kind is proposed by `merges` alone
TOKENIZERS = tuple(kind for kind in KINDS if kind != "prefix-space")
PROPOSED_BY = [*product(TOKENIZERS, STRATEGIES), ("prefix-space", "merges")]
PROPOSED = [(kind, strategy, part) for kind, strategy in PROPOSED_BY for part in ("original", "extended")]


@dataclass
class Folders:
    """Folders that were written, and what they hold in memory."""

    root: Path
    folders: dict[str, str] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    logits: dict[str, torch.Tensor] = field(default_factory=dict)
    ids: dict[str, list[int]] = field(default_factory=dict)

    def add_tokenizer(self, name: str, folder: Path, tokenizer: Any) -> None:
        self.folders[name] = str(folder)
        self.answers[name] = stranger.look_at_tokenizer(tokenizer, TEXTS, MESSAGES)

    def add_model(self, name: str, folder: Path, tokenizer: Any, model: Any) -> None:
        self.add_tokenizer(name, folder, tokenizer)
        joined = [i for text in TEXTS for i in tokenizer(text)["input_ids"]]
        new = tokenizer(" groupby fillna", add_special_tokens=False)["input_ids"]
        self.ids[name] = (new + joined)[:LENGTH]
        self.logits[name], seen = stranger.look_at_model(model, self.ids[name])
        self.answers[name] |= seen


def qwen2_tokenizer() -> Any:
    """Qwen2's kind: release 5 takes its own class for this model type, whatever the folder says."""
    make, _ = PRE_TOKENIZERS["qwen2"]
    tokenizer = byte_level_bpe(LINES, 280, ["<|endoftext|>", "<|begin|>", "<|end|>"], make())
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def base_tokenizer(kind: str) -> Any:
    tokenizer = qwen2_tokenizer() if kind == "qwen2" else make_tokenizer(kind)
    names = ("<s>", "</s>") if "<s>" in tokenizer.get_vocab() else ("<|begin|>", "<|end|>")
    further = {"extra_special_tokens": ["<|tool|>", "<|im_end|>"]}
    tokenizer.add_special_tokens({"bos_token": names[0], "eos_token": names[1], "pad_token": names[1], **further})
    tokenizer.chat_template, tokenizer.padding_side, tokenizer.model_max_length = CHAT, "left", 96
    return tokenizer


def train_two_steps(model: Any, ids: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(2):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def write_model(found: Folders, case: str, tie: str, strategy: str) -> None:
    """Extend, train two steps, export."""
    name = f"{case}-{tie}-{strategy}"
    kind = "qwen2" if case.startswith("qwen2") else TOKENIZERS[list(CASES).index(case) % len(TOKENIZERS)]
    tokenizer = base_tokenizer(kind)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    source = found.root / "bases" / f"{case}-{tie}"
    if not source.exists():
        model = tiny_model(case, tied=tie == "tied", rows=len(tokenizer), **ends, pad_token_id=tokenizer.eos_token_id)
        model.generation_config.update(**GENERATION)
        model.save_pretrained(source)
        save_tokenizer(tokenizer, source)
    base = load_base_model(source, device="cpu")
    # release 5 has a decoder of its own for this model type, which only an export with such a token notices
    new = NEW[:2] if kind == "qwen2" else NEW
    extension = add_tokens(base.tokenizer, new, strategy)
    rows = torch.randn(2, extension.N, base.width, generator=torch.Generator().manual_seed(1))
    model = with_extra_rows(base, *(0.3 * rows))
    train_two_steps(model, torch.arange(len(model.get_input_embeddings().weight))[-LENGTH:][None])
    out = found.root / "out" / name
    export_model(Start(model, extension.extended, extension.new_ids), out, pad_to=64)
    found.add_model(name, out, extension.extended, model)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Every folder of this test."""
    found = Folders(tmp_path_factory.mktemp("folders"))
    for case, tie, strategy in product(CASES, ("tied", "untied"), STRATEGIES):
        write_model(found, case, tie, strategy)
    for kind, strategy in PROPOSED_BY:
        propose(found, kind, strategy)
    return found


def propose(found: Folders, kind: str, strategy: str) -> None:
    """Write the folder of `vocabx tokens propose`."""
    tree, model, out = (found.root / part / f"{kind}-{strategy}" for part in ("tree", "tokenizers", "proposed"))
    tree.mkdir(parents=True)
    for k in range(5):
        (tree / f"m{k}.py").write_text(
            f"def f{k}(frame):\n    return frame.groupby('key').fillna(method='ffill')\n" * 4
        )
    model.mkdir(parents=True)
    save_tokenizer(base_tokenizer(kind), model)
    options = ["--from", str(tree), "--model", str(model), "--n", "8", "--strategy", strategy, "--out", str(out)]
    done = CliRunner().invoke(tokens_command, ["propose", *options])
    assert done.exit_code == 0, done.output
    extension = load_extension(out)
    for part in ("original", "extended"):
        found.add_tokenizer(f"{kind}-{strategy}-{part}", out / part, getattr(extension, part))


@pytest.fixture(scope="session")
def seen(written: Folders) -> Iterator[Callable[[str], tuple[dict[str, Any], dict[str, torch.Tensor]]]]:
    """What an environment finds in all folders; each runs once."""
    results: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]] = {}

    def run(name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        if name not in results:
            results[name] = _ask(python_of(name), written, written.root / name)
        return results[name]

    yield run


def python_of(name: str) -> Path:
    try:
        return environment(name)
    except NoIndexError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"folders were not loaded by {', '.join(PINS[name])}: {error}")


def _ask(python: Path, written: Folders, out: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    job = {"folders": written.folders, "ids": written.ids, "texts": TEXTS, "chat": MESSAGES, "out": str(out)}
    job_file = out.with_suffix(".json")
    job_file.write_text(json.dumps(job), encoding="utf-8")
    script = Path(stranger.__file__)
    done = subprocess.run([python, "-I", script, job_file], capture_output=True, text=True, cwd=written.root)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((out / "answers.json").read_text(encoding="utf-8")), load_file(out / "logits.safetensors")


def differing(here: dict[str, Any], there: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What a folder gives otherwise than the tokenizer and model in memory."""
    return {"error": ("", there["error"])} if "error" in there else {
        key: (here[key], there[key]) for key in here if here[key] != there[key]
    }  # fmt: skip


@pytest.mark.parametrize("release", PINS)
def test_the_environments_are_the_ones_that_are_named(release: str, seen: Any) -> None:
    versions = seen(release)[0]["versions"]
    pinned = dict(pin.split("==") for pin in PINS[release])
    assert versions == {name: pinned.get(name, importlib.metadata.version(name)) for name in versions}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("release", PINS)
def test_a_model_computes_the_same(release: str, name: str, written: Folders, seen: Any) -> None:
    answers, logits = seen(release)
    assert differing(written.answers[name], answers["folders"][name]) == {}
    rows = written.logits[name].shape[1]
    torch.testing.assert_close(logits[name][:, :rows], written.logits[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [f"{kind}-{way}-{part}" for kind, way, part in PROPOSED])
@pytest.mark.parametrize("release", PINS)
def test_a_proposed_tokenizer_gives_the_same_ids(release: str, name: str, written: Folders, seen: Any) -> None:
    assert differing(written.answers[name], seen(release)[0]["folders"][name]) == {}


def test_every_family_that_export_accepts_is_tried() -> None:
    assert {tiny_model(case, tied=False, pad_token_id=0).config.model_type for case in CASES} == FAMILIES
