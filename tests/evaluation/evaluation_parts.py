"""Tokenizers that join line breaks in three different ways, tiny models, and hand-made problems."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from tiny import byte_level_bpe, tiny_decoder
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from vocabx_utils.evaluation import benchmarks
from vocabx_utils.evaluation.benchmark_rows import BenchmarkUnavailableError
from vocabx_utils.evaluation.benchmarks import Problem, load_benchmark
from vocabx_utils.evaluation.kept import KEPT_FOLDER
from vocabx_utils.evaluation.results import Result

CODE = [
    'def add(a, b):\n    """ Add two numbers.\n    >>> add(1, 2)\n    3\n    """\n    return a + b\n',
    "import numpy as np\nresult = np.zeros((3, 4))\nfor i in range(10):\n    result[i] = i + 1\n",
    "### Instruction:\nWrite a function.\n\n### Answer:\n```python\ndef f(x):\n    return x\n```\n",
    "The function returns a value. Naïve café, 12345 and emoji.\n",
]
TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
_QWEN = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _finish(backend: Tokenizer, bos: bool) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|begin|>" if bos else None,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=None if bos else ["<|begin|>"],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def byte_level(kind: str) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer whose pre-tokenizer is GPT-2's (`gpt2`) or like Qwen2.5's (`qwen`)."""
    split = pre_tokenizers.Split(Regex(_QWEN), behavior="isolated")
    like_qwen = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    fast = byte_level_bpe(CODE * 4, 420, ["<|begin|>", "<|end|>"], like_qwen if kind == "qwen" else None)
    return _finish(fast.backend_tokenizer, bos=kind != "qwen")


def sentence_piece() -> PreTrainedTokenizerFast:
    """Train a tokenizer like Llama 2's: spaces become a sign, the first one is dropped in decoding."""
    backend = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<|begin|>", "<|end|>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=440, special_tokens=special, show_progress=False)
    backend.train_from_iterator([text.replace(" ", "▁") for text in CODE * 4], trainer)
    return _finish(backend, bos=True)


def tiny_model(family: str, rows: int) -> Any:
    """Make a two-layer model with random weights large enough that predictions differ."""
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    return tiny_decoder(rows, family=family, seed=1, max_position_embeddings=2048, initializer_range=0.3, **ends)


def humaneval_problem(number: int = 0, body: str = "    return a + b\n") -> Problem:
    start = 'from typing import List\n\n\ndef add(a, b):\n    """ Add two numbers.\n    >>> add(1, 2)\n    3\n    """\n'
    test = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
    row = {"task_id": f"HumanEval/{number}", "prompt": start, "canonical_solution": body, "test": test}
    return benchmarks._humaneval({**row, "entry_point": "add"})


def ds1000_problem(inside: bool = False) -> Problem:
    prompt = "Problem:\nHow long is x?\nA:\n<code>\nimport numpy as np\nx = np.arange(3)\n"
    if inside:
        prompt += "def f(x):\n    # return the solution in this function\n    # result = f(x)\n    ### BEGIN SOLUTION"
    else:
        prompt += "</code>\nresult = ... # put solution in this variable\nBEGIN SOLUTION\n<code>\n"
    reference = "    result = len(x)\n\n    return result\n" if inside else "result = len(x)\n"
    row = {"prompt": prompt, "reference_code": reference, "code_context": "def test_execution(code): ..."}
    return benchmarks._ds1000({**row, "metadata": {"problem_id": 0, "library": "Numpy"}})


def mbpp_problem(number: int = 11) -> Problem:
    text, code = "Write a function that doubles a number.", "def twice(x):\n    return 2 * x"
    tests = {"test_list": ["assert twice(2) == 4", "assert twice(0) == 0"], "test_setup_code": ""}
    return benchmarks._mbpp({"task_id": number, "text": text, "code": code, **tests})


def bigcodebench_problem() -> Problem:
    start = "import math\ndef task_func(x):\n"
    asked = f"Return the root.\nYou should write self-contained code starting with:\n```\n{start}```"
    complete = 'import math\n\ndef task_func(x):\n    """\n    Return the root.\n    """'
    test = "import unittest\nclass TestCases(unittest.TestCase):\n    def test_one(self):\n"
    test += "        self.assertEqual(task_func(4), 2)\n"
    row = {"task_id": "BigCodeBench/0", "instruct_prompt": asked, "complete_prompt": complete, "code_prompt": start}
    answer = {"canonical_solution": "    return math.sqrt(x)", "test": test, "entry_point": "task_func"}
    return benchmarks._bigcodebench({**row, **answer, "libs": ["math"]})


def result(task: str, passed: bool = False, **changes: Any) -> Result:
    """Make the result of one answer."""
    status: tuple[Any, str] = ("pass", "") if passed else ("fail", "assert")
    made = Result(task, 0, *status, "", {}, 1, 1, 0.1, 20, 1, 5.0, "k", "bwrap", "plain", "e")
    return dataclasses.replace(made, **changes)


def load_or_skip(name: str) -> list[Problem]:
    """Problems of a benchmark; the test is skipped where its data is not."""
    try:
        return load_benchmark(name)
    except BenchmarkUnavailableError as error:
        pytest.skip(str(error))


def kept_or_skip(name: str) -> dict[str, Any]:
    """The committed list of a benchmark; the test is skipped where there is none."""
    file = KEPT_FOLDER / f"{name}.json"
    if not file.is_file():
        pytest.skip(f"no list yet: `vocabx eval verify-references {name}` writes it")
    return json.loads(file.read_text())
