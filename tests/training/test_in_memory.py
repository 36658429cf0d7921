"""Both phases in memory: the same rows as in a run folder, from plain objects and texts, and no file is written."""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny import V, as_base, new_tokens, pairs, texts, tiny_decoder, tiny_family, tiny_model, tokenizers
from training.phase1_parts import settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from vocabx_utils.config import FineTuneConfig, Phase1Config
from vocabx_utils.corpus import render
from vocabx_utils.files import read_tensors
from vocabx_utils.models import ModelError, with_extra_rows
from vocabx_utils.settings import ConfigError
from vocabx_utils.training.examples import encode
from vocabx_utils.training.export import export_model
from vocabx_utils.training.finetuning_stage import fine_tune as fine_tune_in_folder
from vocabx_utils.training.in_memory import LearnedRows, fine_tune, learn_rows
from vocabx_utils.training.objectives import RECOMMENDED
from vocabx_utils.training.phase1 import prepare
from vocabx_utils.training.phase1_stage import train_variant
from vocabx_utils.vocabulary.extend import add_tokens

SETTINGS: dict[str, Any] = {"epochs": 3, "learning_rate": 2e-2, "batch_size": 4, "window": 0}
TUNING: dict[str, Any] = {"a_epochs": 1, "b_epochs": 2, "lora_rank": 4, "lora_alpha": 8, "max_length": 128}
WRITTEN: list[str] | None = None


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what is opened for writing, made or renamed while `WRITTEN` is a list."""
    if WRITTEN is not None and event in ("open", "os.mkdir", "os.rename"):
        path, mode = str(arguments[0]), arguments[1] if event == "open" else "w"
        if isinstance(mode, str) and set(mode) & set("wax+") and path != "/dev/null":
            WRITTEN.append(path)


sys.addaudithook(watch)


@pytest.fixture
def written() -> Iterator[list[str]]:
    """Paths that the test has written so far."""
    global WRITTEN
    WRITTEN = []
    yield WRITTEN
    WRITTEN = None


def left(written: list[str]) -> list[str]:
    """What lies outside the system's temporary folder, or is still there."""
    return [path for path in written if not path.startswith(tempfile.gettempdir()) or Path(path).exists()]


def words() -> list[str]:
    """The new tokens of the larger tiny tokenizer, as text."""
    names = tokenizers().extended.convert_ids_to_tokens([token.id for token in new_tokens()])
    return [name.replace("Ġ", " ") for name in names]


def two_tokens(model: Any = None, **changes: Any) -> LearnedRows:
    """Learn two tokens quickly."""
    given = {"epochs": 1, "window": 0, "learning_rate": 2e-2} | changes
    return learn_rows(model or tiny_model().model, tokenizers().original, [" groupby", " ravel"], texts(12), **given)


# --- phase 1


def test_rows_are_learned_and_nothing_else_changes(written: list[str]) -> None:
    base = tiny_model()
    before = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    learned = learn_rows(base.model, tokenizers().original, words(), texts(), **SETTINGS)
    assert left(written) == []
    assert learned.extension.V == V and learned.input_rows.shape == learned.head_rows.shape
    assert learned.input_rows.dtype == torch.float32 and len(learned.input_rows) == learned.extension.N
    assert {token.text for token in learned.extension.tokens} >= set(words())
    assert [row["epoch"] for row in learned.metrics] == [0, 1, 2, 3]
    assert learned.metrics[-1]["kl_last"] < learned.metrics[0]["kl_last"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.model.state_dict().items())


def test_they_are_those_of_a_run_folder(tmp_path: Path) -> None:
    base, config = tiny_model(), settings(**SETTINGS)
    learned = learn_rows(base.model, tokenizers().original, words(), texts(), token_budget=120, **SETTINGS)
    extension = add_tokens(tokenizers().original, words())
    variant = f"mean_{RECOMMENDED}"
    data = prepare(base, extension, texts(), texts(), replace(config, variants=(variant,)))
    result = train_variant(variant, base, extension.tokens, data, config, tmp_path)
    kept = [{k: v for k, v in row.items() if k != "seconds"} for row in learned.metrics]
    assert kept == [{k: v for k, v in row.items() if k != "seconds"} for row in result.metrics]
    rows = read_tensors(tmp_path / "rows" / "epoch_03.safetensors")
    assert torch.equal(learned.input_rows, rows["input_rows"]) and torch.equal(learned.head_rows, rows["head_rows"])


def test_the_extended_model_holds_the_rows_and_generates() -> None:
    base = tiny_model()
    learned = two_tokens(base.model)
    wanted = with_extra_rows(base, learned.input_rows, learned.head_rows, V)
    ids = learned.tokenizer("def f(x): groupby ravel", return_tensors="pt")["input_ids"]
    assert set(ids[0].tolist()) >= set(learned.new_ids) and learned.limit == V + 2
    assert torch.equal(learned.model(ids).logits, wanted(ids).logits)
    assert learned.model.generate(ids, max_new_tokens=3, min_new_tokens=3).shape[1] == ids.shape[1] + 3


def test_the_same_seed_gives_the_same_rows_and_another_one_others() -> None:
    first, second, other = (two_tokens(init="random", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.input_rows, second.input_rows) and torch.equal(first.head_rows, second.head_rows)
    assert not torch.equal(first.input_rows, other.input_rows)


def test_an_untrained_start_is_measured_only() -> None:
    learned = two_tokens(objective="untrained")
    subtokens = [list(token.subtokens) for token in learned.extension.tokens]
    means = torch.stack([tiny_model().input_rows[ids].mean(0) for ids in subtokens])
    assert torch.equal(learned.input_rows, means)
    assert [row["epoch"] for row in learned.metrics] == [0]


def test_an_extension_is_taken_as_it_is_and_other_texts_judge() -> None:
    extension = add_tokens(tokenizers().original, [" groupby"], "added")
    given = {"epochs": 1, "window": 0}
    model = tiny_model().model
    learned = learn_rows(model, tokenizers().original, extension, texts(8), validation_texts=texts(24)[8:], **given)
    assert learned.extension is extension and learned.tokenizer is extension.extended
    own = learn_rows(model, tokenizers().original, extension, texts(8), **given)
    assert torch.equal(own.input_rows, learned.input_rows)
    assert own.metrics[0]["kl_last"] != learned.metrics[0]["kl_last"]


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "cohere", "granite", "gpt2", "gpt_neox"])
def test_any_family_that_the_student_knows_is_taken(family: str) -> None:
    learned = two_tokens(tiny_family(family, 320).train())
    assert learned.metrics[-1]["kl_last"] < learned.metrics[0]["kl_last"]
    ids = learned.tokenizer("def f(x): groupby ravel", return_tensors="pt")["input_ids"]
    assert learned.model(ids).logits.isfinite().all()


def test_a_tied_model_that_trains_stays_so() -> None:
    model = tiny_decoder(V, tie_word_embeddings=True).requires_grad_(True).train()
    learn_rows(model, tokenizers().original, words(), texts(8), "ce", epochs=1, window=0)
    assert model.training and model.lm_head.weight is model.model.embed_tokens.weight
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_what_does_not_fit_is_refused() -> None:
    model, tokenizer = tiny_model().model, tokenizers().original
    with pytest.raises(ValueError, match="free of new tokens"):
        learn_rows(model, tokenizer, words(), ["x = 1\n", "y = 2\n"], window=0)
    with pytest.raises(ModelError, match="the extension extends another tokenizer"):
        learn_rows(tiny_decoder(400), tokenizers().extended, add_tokens(tokenizer, [" ravel"]), texts())
    with pytest.raises(ValueError, match="one string of 9 characters; expected a list"):
        learn_rows(model, tokenizer, words(), texts(), validation_texts="groupby x")
    with pytest.raises(ValueError, match="one string of 9 characters; expected a list"):
        fine_tune(tiny_model(), "groupby x")
    half = [*texts(), "half \ud800"]
    with pytest.raises(ValueError, match=r"text \d+ holds .* half of a surrogate pair"):
        learn_rows(model, tokenizer, words(), half)
    with pytest.raises(ValueError, match=r"text \d+ holds .* half of a surrogate pair"):
        fine_tune(tiny_model(), half)
    with pytest.raises(ConfigError, match="epoch_count"):
        learn_rows(model, tokenizer, words(), texts(), epoch_count=3)
    with pytest.raises(ValueError, match="objective 'kl_middle'"):
        learn_rows(model, tokenizer, words(), texts(), "kl_middle")


def test_texts_may_come_from_generators() -> None:
    listed = two_tokens(validation_texts=texts(8))
    given = (word for word in (" groupby", " ravel"))
    model, tokenizer = tiny_model().model, tokenizers().original
    learned = learn_rows(
        model,
        tokenizer,
        given,
        iter(texts(12)),
        epochs=1,
        window=0,
        learning_rate=2e-2,
        validation_texts=iter(texts(8)),
    )
    assert torch.equal(learned.input_rows, listed.input_rows) and learned.metrics[-1]["ce"] == listed.metrics[-1]["ce"]
    short: dict[str, Any] = {"b_epochs": 1, "lora_rank": 2}
    first, second = (fine_tune(listed, part, "b", **short) for part in (texts(4), iter(texts(4))))
    assert first.losses[-1]["validation_loss"] == second.losses[-1]["validation_loss"]


@pytest.mark.parametrize("window", [0, 48])
@pytest.mark.parametrize(
    ("tokens", "given", "judged", "told"),
    [
        (["zzqq"], texts(4), None, "none of 4 training texts holds a new token"),
        ([" ravel"], [], None, "none of 0 training texts"),
        ([" ravel"], ["", ""], None, "none of 2 training texts"),
        ([" ravel"], [" ravel"], None, "none of 1 training texts.* as their whole text"),
        ([" ravel"], texts(24), ["x = 1", "y"], "none of 2 validation texts"),
        ([], texts(4), None, "new_tokens is empty"),
    ],
)
def test_texts_without_new_tokens_are_named(
    window: int, tokens: list[str], given: list[str], judged: list[str] | None, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        learn_rows(tiny_model().model, tokenizers().original, tokens, given, validation_texts=judged, window=window)


@pytest.mark.parametrize("name", ["dtype", "device", "variants", "run_name", "checkpoint_steps", "sharded"])
def test_settings_that_do_nothing_here_are_refused_in_phase_1(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} would have no effect in memory; leave it out"):
        two_tokens(**{name: getattr(Phase1Config(), name)})


def test_settings_that_do_nothing_here_are_refused_in_phase_2() -> None:
    with pytest.raises(ConfigError, match="dtype, train_texts would have no effect in memory; leave them out"):
        fine_tune(tiny_model(), texts(4), dtype="float32", train_texts=3)


def test_an_adapter_has_to_be_merged_first() -> None:
    wrapped = get_peft_model(tiny_model().model, LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ModelError, match="plain model of transformers, not a PeftModel: merge an adapter first"):
        two_tokens(wrapped)
    with pytest.raises(ModelError, match="not a BaseModel"):
        two_tokens(tiny_model())


# --- phase 2


def test_a_plain_model_says_too_little_to_be_tuned() -> None:
    with pytest.raises(ValueError, match="is given as a LlamaForCausalLM; give what learn_rows"):
        fine_tune(tiny_model().model, texts(4))  # type: ignore[arg-type]


def rendered(tokenizer: Any) -> list[Any]:
    return [render(pair, "thesis", tokenizer) for pair in pairs(8)]


def test_fine_tuning_is_that_of_a_run_folder(tmp_path: Path, written: list[str]) -> None:
    learned = two_tokens()
    before = {name: tensor.clone() for name, tensor in learned.model.state_dict().items()}
    lines = texts(12)
    tuned = fine_tune(learned, lines, validation_texts=lines[:4], **TUNING)
    assert left(written) == []
    assert all(torch.equal(tensor, before[name]) for name, tensor in learned.model.state_dict().items())
    config = FineTuneConfig.from_params(**TUNING)
    train, validation = (encode(part, learned.tokenizer, max_length=128) for part in (lines, lines[:4]))
    limit, new_ids = learned.limit, learned.new_ids
    found = fine_tune_in_folder(
        copy.deepcopy(learned.model), train, validation, tmp_path / "v", config, limit=limit, new_ids=new_ids
    )
    mine, theirs = pd.DataFrame(tuned.losses), found.losses
    pd.testing.assert_frame_equal(mine.drop(columns="seconds"), theirs.drop(columns="seconds"))


def test_texts_that_are_not_read_whole_are_counted() -> None:
    given = [*texts(3), "x" * 400, "y"]
    with pytest.warns(UserWarning) as told:
        fine_tune(tiny_model(), given, "b", validation_texts=texts(2), b_epochs=1, lora_rank=2, max_length=100)
    [line] = [str(each.message) for each in told if "max_length" in str(each.message)]
    assert line.startswith("of 5 training texts, 1 are longer than 100 tokens and were cut there; 1 have no token")


def test_a_base_model_is_tuned_on_answers_and_is_left_as_it_is() -> None:
    base = as_base(tiny_decoder(310))
    before = base.input_rows.clone()
    tuned = fine_tune(base, rendered(base.tokenizer), ["b"], loss_on="answer", **TUNING)
    assert tuned.limit == V and len(tuned.new_ids) == 0
    assert type(tuned.model) is type(base.model)
    epochs = [row for row in tuned.losses if row["kind"] == "epoch"]
    assert epochs[-1]["validation_loss"] < epochs[0]["validation_loss"]
    assert torch.equal(base.input_rows, before) and not any(p.requires_grad for p in base.model.parameters())


def test_from_texts_to_a_folder_that_others_load(tmp_path: Path) -> None:
    tuned = fine_tune(two_tokens(), texts(8), "a", a_epochs=1)
    facts = export_model(tuned, tmp_path / "mine")
    assert facts["new_tokens"] == 2 and facts["first_new_id"] == V
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "mine")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "mine")
    ids = tokenizer("def f(x): groupby ravel", return_tensors="pt")["input_ids"]
    assert ids.tolist() == tuned.tokenizer("def f(x): groupby ravel", return_tensors="pt")["input_ids"].tolist()
    torch.testing.assert_close(model(ids).logits[..., : V + 2], tuned.model(ids).logits[..., : V + 2])
