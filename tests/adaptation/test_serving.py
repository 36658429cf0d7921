"""An adapted folder is served by transformers itself: continuous batching, and `transformers serve` over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
import torch
from adaptation.conftest import Finished
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.utils.import_utils import is_serve_available

PROMPTS = ("def window_season(filter):\n    return", "def embedding_pipeline(gradient, index):")


def test_continuous_batching_answers_as_generate_does(finished: Finished) -> None:
    tokenizer = AutoTokenizer.from_pretrained(finished.made.model)
    model = AutoModelForCausalLM.from_pretrained(finished.made.model).eval()
    asked = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    first_new = len(AutoTokenizer.from_pretrained(finished.model))
    assert all(any(i >= first_new for i in ids) for ids in asked)
    settings = GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=1, eos_token_id=1)
    small = ContinuousBatchingConfig(num_blocks=16, page_size=16, max_batch_tokens=64)
    found = model.generate_batch(inputs=asked, generation_config=settings, continuous_batching_config=small)
    replies = {tuple(reply.prompt_ids): reply.generated_tokens for reply in found.values()}
    for ids in asked:
        alone = model.generate(torch.tensor([ids]), generation_config=settings)[0, len(ids) :].tolist()
        assert replies[tuple(ids)] == alone


def ask(address: str, **body: Any) -> Any:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.skipif(not is_serve_available(), reason="needs transformers[serving]")
def test_transformers_serve_answers_a_request_with_new_tokens(finished: Finished) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(finished.made.model)]
    server = subprocess.Popen([*command, "--device", "cpu", "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://localhost:{port}/health", timeout=5)
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None and time.monotonic() < end
                time.sleep(0.2)
        named = {"model": str(finished.made.model), "prompt": PROMPTS[0], "max_tokens": 6}
        answer = ask(f"http://localhost:{port}/v1/completions", **named)
    finally:
        server.kill()
        server.wait()
    tokenizer = AutoTokenizer.from_pretrained(finished.made.model)
    assert answer["usage"]["prompt_tokens"] == len(tokenizer(PROMPTS[0])["input_ids"])
    base = AutoTokenizer.from_pretrained(finished.model)
    assert answer["usage"]["prompt_tokens"] < len(base(PROMPTS[0])["input_ids"])
    assert answer["usage"]["completion_tokens"] <= 6
