"""Whether servers answer from an adapted folder as transformers' own `generate` does, new tokens in prompt and answer.

    python tests/bench/serving.py OUT --base smollm2-135m --json results/adapt/serving.json
    python tests/bench/serving.py OUT --base smollm2-135m --gguf OUT.gguf --json results/adapt/serving.json

Prompts are the held-out ones of `OUT/summary.json`. Each way answers greedily; a line says how many of its answers are
those of `generate`. `transformers serve` needs `transformers[serving]`, and `--gguf` (made by llama.cpp's
`convert_hf_to_gguf.py OUT/model --outtype f32`) the package `xllamacpp`; what is missing is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.utils.import_utils import is_serve_available

from vocabx_utils.files import read_json, write_json
from vocabx_utils.models import load_tokenizer
from vocabx_utils.runs import git_revision, installed_versions

Answer = Callable[[str], str]
TOKENS = 32  # of an answer


def main() -> None:
    """Ask every way that is there, and write what came."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--base", default="smollm2-135m")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    folder = given.out / "model"
    prompts = [row["prompt"] for row in read_json(given.out / "summary.json")["generation"]["prompts"]]
    tokenizer, first_new = AutoTokenizer.from_pretrained(folder), len(load_tokenizer(given.base))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    asked = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    ends = {"eos_token_id": model.generation_config.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    settings = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, **ends)
    alone = [model.generate(torch.tensor([ids]), generation_config=settings)[0, len(ids) :].tolist() for ids in asked]
    wanted = {prompt: text_of(tokenizer, ids) for prompt, ids in zip(prompts, alone, strict=True)}
    rows: list[dict[str, Any]] = []

    def judge(way: str, answer: Answer) -> None:
        found = {prompt: answer(prompt).strip() for prompt in prompts}
        rows.append({"way": way, "prompts": len(prompts), "same": sum(found[p] == wanted[p] for p in prompts)})
        print(rows[-1], flush=True)

    batched = model.generate_batch(inputs=asked, generation_config=settings, continuous_batching_config=small())
    replies = {tuple(reply.prompt_ids): reply.generated_tokens for reply in batched.values()}
    judge("generate_batch", lambda prompt: text_of(tokenizer, replies[tuple(tokenizer(prompt)["input_ids"])]))
    if is_serve_available():
        for way, words in (("transformers serve", ()), ("transformers serve, continuous batching", CONTINUOUS)):
            with server(folder, *words) as address:
                judge(way, lambda prompt, at=address: over_http(at, folder, prompt))  # type: ignore[misc]
    if given.gguf and importlib.util.find_spec("xllamacpp"):
        judge("llama.cpp (xllamacpp)", by_llama_cpp(given.gguf))
    write_json(
        given.json,
        {
            "base": given.base,
            "new_in_prompts": sum(i >= first_new for ids in asked for i in ids),
            "new_in_answers": sum(i >= first_new for ids in alone for i in ids),
            "tokens": TOKENS,
            "ways": rows,
            "versions": installed_versions(("torch", "transformers", "fastapi", "xllamacpp", "gguf")),
            "git": git_revision(),
        },
    )


CONTINUOUS = ("--continuous-batching", "--cb-num-blocks", "64", "--cb-max-batch-tokens", "256")


def small() -> ContinuousBatchingConfig:
    """A cache of a few pages; by default most of the machine's memory is taken."""
    return ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=256)


def text_of(tokenizer: Any, ids: list[int]) -> str:
    """An answer as text, without what ends it."""
    return str(tokenizer.decode(ids, skip_special_tokens=True)).strip()


@contextlib.contextmanager
def server(folder: Path, *words: str) -> Iterator[str]:
    """Run `transformers serve` on a free port."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), "--device", "cpu"]
    process = subprocess.Popen([*command, "--port", str(port), *words], stderr=subprocess.DEVNULL)
    address, end = f"http://localhost:{port}", time.monotonic() + 120
    try:
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the server did not come up")
            time.sleep(0.5)
        yield address
    finally:
        process.kill()
        process.wait()


def over_http(address: str, folder: Path, prompt: str) -> str:
    """Ask a server for a completion."""
    body = {"model": str(folder), "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return str(json.loads(answer.read())["choices"][0]["text"])


def by_llama_cpp(path: Path) -> Answer:
    """Load a GGUF file with llama.cpp, which cuts the prompt into tokens itself."""
    xllamacpp = importlib.import_module("xllamacpp")  # no dependency: whoever has it may ask it

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(path), 1024, 1, False
    running = xllamacpp.Server(params)

    def answer(prompt: str) -> str:
        asked = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "top_k": 1}
        found = running.handle_completions(asked)
        return str((found if isinstance(found, dict) else json.loads(found))["choices"][0]["text"])

    return answer


if __name__ == "__main__":
    main()
