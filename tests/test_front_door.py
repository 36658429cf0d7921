"""The verbs of `vocabx_utils`: there, light to import, each with an example, and right on plain objects."""

from __future__ import annotations

import ast
import copy
import inspect
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from tiny import texts, tiny_model, tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

import vocabx_utils
from vocabx_utils.models import ModelError, freeze
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.initialization import head_rows, input_rows

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "transformers", "tokenizers", "pandas", "numpy", "scipy", "matplotlib", "peft", "click"}


def test_every_verb_is_there_and_shows_an_example() -> None:
    for name in vocabx_utils.__all__:
        verb = getattr(vocabx_utils, name)
        assert callable(verb) and verb.__name__ == name
        assert ">>> " in (inspect.getdoc(verb) or ""), name
        assert f"`{name}`" in (vocabx_utils.__doc__ or ""), name
    assert set(vocabx_utils.__all__) <= set(dir(vocabx_utils))
    assert 10 <= len(vocabx_utils.__all__) <= 15


def test_type_checkers_see_the_same_verbs_in_the_same_rooms() -> None:
    tree = ast.parse(Path(vocabx_utils.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname: f"{node.module}.{alias.name}"
        for block in blocks
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: f"vocabx_utils.{room}.{name}" for name, room in vocabx_utils._ROOMS.items()}


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        f"import sys, vocabx_utils; dir(vocabx_utils); print(sorted({HEAVY!r} & set(sys.modules)), "
        "[name for name in sys.modules if name.startswith('vocabx_utils.')])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert answer.stdout.strip() == "[] []"


def test_an_unknown_verb_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'learn_row'; its verbs are .*add_tokens"):
        _ = vocabx_utils.learn_row  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="learn_row"):
        exec("from vocabx_utils import learn_row")


# --- models in memory


def test_a_model_in_memory_is_frozen_without_being_touched() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    model = tiny.tiny_decoder(tiny.ROWS, tie_word_embeddings=True).train()
    base = freeze(model, tokenizers().original)
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # its gradients may be NaN, on whoever loaded the model
    assert model.training and model.config.tie_word_embeddings
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not base.model.training and not base.model.config.tie_word_embeddings
    assert base.head_rows is not base.input_rows and bool((base.head_rows == base.input_rows).all())
    assert base.vocab_size == tiny.V and not any(parameter.requires_grad for parameter in base.model.parameters())
    again = freeze(base.model, tokenizers().original)  # nothing is to be changed, so nothing is copied
    assert again.model is base.model and again.fingerprint == base.fingerprint


def test_a_model_with_too_few_rows_is_refused() -> None:
    with pytest.raises(ModelError, match="the tokenizer has 300 ids, the model 290 rows"):
        freeze(tiny.tiny_decoder(290), tokenizers().original)


# --- first values


def test_first_rows_are_those_of_the_training() -> None:
    base, extension = tiny_model(), add_tokens(tokenizers().original, [" groupby", " return"])
    for method, head in (("mean", "first"), ("random", "random"), ("align", "mean")):
        found = vocabx_utils.first_rows(base.model, extension, method, head, texts=texts(), seed=3)
        generator = torch.Generator().manual_seed(3)
        aligned = align_texts(extension, texts())
        wanted = input_rows(method, base, extension.tokens, generator, aligned=aligned)
        assert torch.equal(found[0], wanted)
        assert torch.equal(found[1], head_rows(head, base, extension.tokens, generator))
        assert found[0].shape == (extension.N, tiny.WIDTH)
    with pytest.raises(ValueError, match="computed from texts"):
        vocabx_utils.first_rows(base.model, extension, "align")


# --- bits per byte


def bits(model: Any, ids: list[int], first: int) -> float:
    """Bits of the ids from `first` on, by the model's own logits over the ids that its tokenizer has."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :, : tiny.V].double()
    found = torch.log_softmax(logits[:-1], -1)[range(len(ids) - 1), ids[1:]]
    return float(-found[first - 1 :].sum()) / math.log(2)


def test_bits_per_byte_are_those_of_the_models_own_logits() -> None:
    base, lines = tiny_model(), texts(5)
    total = size = 0.0
    for line in lines:
        ids = base.tokenizer(line)["input_ids"]
        total += bits(base.model, ids, 1)
        size += len(line.encode()) - len(base.tokenizer.decode(ids[:1]).encode())
    assert vocabx_utils.bits_per_byte(base.model, base.tokenizer, lines) == pytest.approx(total / size, rel=1e-5)
    assert vocabx_utils.bits_per_byte(base.model, base.tokenizer, [*lines, "d"]) == pytest.approx(total / size)


def test_with_a_begin_token_the_whole_text_is_scored() -> None:
    base, line = tiny_model(), texts(1)[0]
    begun = copy.deepcopy(base.tokenizer)
    begun.bos_token = "<eos>"
    begun.backend_tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 0)])
    ids = begun(line)["input_ids"]
    assert ids[0] == 0
    wanted = bits(base.model, ids, 1) / len(line.encode())
    assert vocabx_utils.bits_per_byte(base.model, begun, [line]) == pytest.approx(wanted, rel=1e-5)


def test_tokenizers_are_compared_on_the_same_bytes() -> None:
    base, extension = tiny_model(), add_tokens(tokenizers().original, ["reshape"])
    text = "reshape(x)"  # one token for the extended tokenizer, several for the original
    ids = base.tokenizer(text)["input_ids"]
    shared = next(k for k in range(1, len(ids)) if base.tokenizer.decode(ids[:k]) == "reshape")
    assert shared > 1
    found = vocabx_utils.bits_per_byte(base.model, base.tokenizer, [text], compared_with=[extension.extended])
    assert found == pytest.approx(bits(base.model, ids, shared) / len("(x)"), rel=1e-5)


def test_a_long_text_is_cut_at_line_ends() -> None:
    base, lines = tiny_model(), texts(4)
    longest = max(len(base.tokenizer(line)["input_ids"]) for line in lines)
    assert longest > 20
    whole = vocabx_utils.bits_per_byte(base.model, base.tokenizer, ["".join(lines)])
    cut = vocabx_utils.bits_per_byte(base.model, base.tokenizer, ["".join(lines)], max_tokens=longest + 1)
    assert cut == pytest.approx(vocabx_utils.bits_per_byte(base.model, base.tokenizer, lines), rel=1e-6) != whole
    with_positions = tiny_model(max_position_embeddings=longest + 1)
    assert vocabx_utils.bits_per_byte(with_positions.model, base.tokenizer, ["".join(lines)]) == pytest.approx(cut)


def test_bits_per_byte_say_what_they_need() -> None:
    base = tiny_model()
    with pytest.raises(ValueError, match="one string of 5 characters"):
        vocabx_utils.bits_per_byte(base.model, base.tokenizer, "texts")
    with pytest.raises(ValueError, match="expected at least one text of two tokens"):
        vocabx_utils.bits_per_byte(base.model, base.tokenizer, ["d", ""])
    with pytest.raises(ValueError, match=r"text 1 holds .* half of a surrogate pair"):
        vocabx_utils.bits_per_byte(base.model, base.tokenizer, ["whole text", "half \ud800"])
    with pytest.raises(ValueError, match=r"text 1 is \['two', 'lines'\] \(list\); expected a string"):
        vocabx_utils.bits_per_byte(base.model, base.tokenizer, ["whole text", ["two", "lines"]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="max_tokens is 4; expected 16 or more"):
        vocabx_utils.bits_per_byte(base.model, base.tokenizer, texts(1), max_tokens=4)


# --- one verb after the other


def test_what_one_verb_returns_the_next_one_takes(tmp_path: Path) -> None:
    base = tiny_model()
    proposals = vocabx_utils.select_tokens(texts(), base.tokenizer, 3)
    vocabx_utils.add_tokens(base.tokenizer, proposals).save(tmp_path / "extension")
    extension = vocabx_utils.load_extension(tmp_path / "extension")
    learned = vocabx_utils.learn_rows(base.model, base.tokenizer, extension, texts(), epochs=1)
    subtokens = [token.subtokens for token in extension.tokens]
    cosines = vocabx_utils.subtoken_cosines(learned.input_rows, base.input_rows, subtokens)
    assert cosines["last"].shape == (extension.N,) and (cosines["last"] <= 1).all()
    tuned = vocabx_utils.fine_tune(learned, texts(6), "b", b_epochs=1, lora_rank=2)
    before, after = (
        vocabx_utils.bits_per_byte(made.model, made.tokenizer, texts(6), compared_with=[base.tokenizer])
        for made in (learned, tuned)
    )
    assert 0 < after < before
    vocabx_utils.export_model(tuned, tmp_path / "mine")
    again = vocabx_utils.load_base_model(tmp_path / "mine", device="cpu")
    wanted = vocabx_utils.bits_per_byte(again.model, again.tokenizer, texts(6), compared_with=[base.tokenizer])
    assert wanted == pytest.approx(after, rel=1e-5)


# --- documents


def test_the_example_of_the_readme_runs_as_it_stands(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", readme, flags=re.S)
    named = code.replace('"smollm2-135m"', repr(str(tiny_folder)))
    assert named != code
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "part").mkdir(parents=True)
    words = ["column", "joined", "window", "season", "filter", "before", "table", "index", "merge", "plot", "axis"]
    for number, text in enumerate(texts(24)):
        chosen = " ".join(random.Random(number).sample(words, 8))
        (tmp_path / "src" / "part" / f"{number:02}.py").write_text(f"{text}    # {chosen}\n", encoding="utf-8")
    exec(compile(named, "README.md", "exec"), {})
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0
    tokenizer = AutoTokenizer.from_pretrained("my-model")
    assert AutoModelForCausalLM.from_pretrained("my-model").config.vocab_size >= len(tokenizer)
    assert len(tokenizer) == len(AutoTokenizer.from_pretrained(tiny_folder)) + 8


def test_the_page_lists_every_verb() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)`", page, flags=re.M)) == sorted(vocabx_utils.__all__)
