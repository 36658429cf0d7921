"""What scripts of this folder share: shapes and random models, time and memory, files of results, tables of pages."""

from __future__ import annotations

import argparse
import datetime
import gc
import platform
import re
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from vocabx_utils import files, models, runs
from vocabx_utils.config import Phase1Config
from vocabx_utils.corpus import Pair
from vocabx_utils.models import BaseModel
from vocabx_utils.student import Student
from vocabx_utils.training import fusing, stages
from vocabx_utils.training.forgetting import TextSet
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import Phase1Data, Phase1Training, new_student
from vocabx_utils.training.starts import Start
from vocabx_utils.vocabulary.tokens import Extension

T = TypeVar("T")
NOTHING = "not measured"
"""What a page says where no file holds a number."""
_LLAMA_67B = dict(
    model_type="llama", hidden_size=4096, intermediate_size=11_008, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=32, max_position_embeddings=4096,
)  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-coder-0.5b": dict(
        model_type="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, vocab_size=151_936, max_position_embeddings=4096,
    ),
    "llama-6.7b": dict(vocab_size=32_256, **_LLAMA_67B),
    "llama-6.7b-v128k": dict(vocab_size=128_256, **_LLAMA_67B),
    "qwen2.5-32b": dict(
        model_type="qwen2", hidden_size=5120, intermediate_size=27_648, num_hidden_layers=64, num_attention_heads=40,
        num_key_value_heads=8, vocab_size=152_064, max_position_embeddings=4096,
    ),
    "llama-3-70b": dict(
        model_type="llama", hidden_size=8192, intermediate_size=28_672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128_256, max_position_embeddings=4096,
    ),
    "tiny": dict(
        model_type="llama", hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=512, max_position_embeddings=2048,
    ),
}  # fmt: skip


def device_name() -> str:
    """Full name of the device that is measured."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"


def short_device() -> str:
    """Part of a file name: `cpu`, `h100`, `h200` or the device's name in small letters."""
    if not torch.cuda.is_available():
        return "cpu"
    found = re.search(r"[A-Z]+\d+", torch.cuda.get_device_name())
    return found[0].lower() if found else re.sub(r"\W+", "-", torch.cuda.get_device_name()).lower()


def facts() -> dict[str, Any]:
    """Device, versions and date of a result."""
    return {
        "device": device_name(),
        "versions": runs.installed_versions(("torch", "transformers", "peft", "accelerate")),
        "date": datetime.date.today().isoformat(),
    }


def matmul_ceiling(size: int = 8192) -> float:
    """FLOP/s of a square product in bf16 (float32 on CPU), the best of three rounds."""
    a, b = _square_pair(size)
    return max(_rate(a, b, 20) for _ in range(3))


def product_rate(size: int, seconds: float) -> float:
    """FLOP/s of the same product while it runs for about so many seconds."""
    a, b = _square_pair(size)
    repeats = max(1, round(seconds * _rate(a, b, 1) / (2 * size**3)))
    return _rate(a, b, repeats)


def _square_pair(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices that have been multiplied once, since a first product does more."""
    device = models.pick_device("auto")
    a, b = (torch.randn(size, size, device=device, dtype=models.pick_dtype("auto", device)) for _ in range(2))
    a @ b
    return a, b


def _rate(a: torch.Tensor, b: torch.Tensor, repeats: int) -> float:
    """FLOP/s of so many products, one after the other."""
    synchronise()
    started = time.perf_counter()
    for _ in range(repeats):
        a @ b
    synchronise()
    return 2 * len(a) ** 3 * repeats / (time.perf_counter() - started)


def seconds_of(run: Callable[[], object]) -> float:
    """Seconds of a call, from an idle device to an idle device: the card, where there is one."""
    return fusing.seconds_of(run, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def layer_weights(shape: Mapping[str, Any]) -> float:
    """Weights of the linear layers in one block of a shape."""
    width, kv = shape["hidden_size"], shape["num_key_value_heads"] / shape["num_attention_heads"]
    return float(width**2 * (2 + 2 * kv) + 3 * width * shape["intermediate_size"])


def block_work(model: Any, length: int) -> tuple[int, int]:
    """Weights of the linear layers in all blocks, and FLOP of causal attention for one token of a text of T."""
    settings, modules = model.config, stages.blocks_of(model).modules()
    weights = sum(module.weight.numel() for module in modules if isinstance(module, torch.nn.Linear))
    width = getattr(settings, "head_dim", None) or settings.hidden_size // settings.num_attention_heads
    return weights, 2 * length * settings.num_hidden_layers * settings.num_attention_heads * width


def random_model(shape: str) -> Any:
    """A plain untied model of a shape, with random weights made on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    device = models.pick_device("auto")
    models.avoid_cudnn_attention()  # as the package does where it loads a model
    config = AutoConfig.for_model(**SHAPES[shape], tie_word_embeddings=False)
    default = torch.get_default_dtype()
    torch.set_default_dtype(models.pick_dtype("auto", device))
    try:
        with device:
            model = AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(default)
    return models.untie(model).eval().requires_grad_(False)


def seconds_left(started: float, minutes: float) -> float:
    """Seconds of a time limit that are left, `started` being a reading of `time.perf_counter`."""
    return 60 * minutes - (time.perf_counter() - started)


def while_time_lasts(
    items: Sequence[T], options: argparse.Namespace, margin: float, told: Callable[[int, T], str]
) -> Iterator[T]:
    """Yield items as long as one that takes as long as the longest so far would end in time.

    Args:
        options: `started` and `minutes`, see `seconds_left`.
        margin: how many times the longest must be left.
        told: sentence on what is left out, by the number of items and the first of them.
    """
    longest = 0.0
    for place, item in enumerate(items):
        if seconds_left(options.started, options.minutes) < margin * longest:
            print(f"{told(len(items) - place, item)}: no time", flush=True)
            return
        began = time.perf_counter()
        yield item
        longest = max(longest, time.perf_counter() - began)


def known_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of a file of results, plain or `.gz`; none where it is not there yet."""
    return files.read_jsonl(path) if path.exists() else []


def known_json(path: Path) -> dict[str, Any]:
    """What a file of results holds; empty where it is not there yet."""
    return dict(files.read_json(path)) if path.exists() else {}


def refuse_others(place: Path, rows: Iterable[Mapping[str, Any]], here: Mapping[str, Any], option: str) -> None:
    """SystemExit where a line of results was measured with other settings: one table holds one setting.

    Args:
        option: that names another place.
    """
    for row in rows:
        if row["settings"] != here:
            odd = {name: (value, here.get(name)) for name, value in row["settings"].items() if here.get(name) != value}
            raise SystemExit(
                f"{place} holds {row['arm']} with other settings (there, here): {odd}; choose another {option}, or "
                "take these"
            )


def label_of(label: str | None, model: str) -> str:
    """Name of a model in results: the one that was given, or else the end of its path."""
    return label or Path(model).name.removesuffix(".gguf")


def read_splits(path: Path) -> dict[str, list[Pair]]:
    """Read a corpus that `prepare_corpora.py` or `reproduction.py prepare` wrote, by split."""
    splits: dict[str, list[Pair]] = {}
    for row in files.read_jsonl(path):
        splits.setdefault(row.pop("split"), []).append(Pair(**row))
    return splits


def write_sets(path: Path, sets: Iterable[TextSet]) -> None:
    """Write the texts that forgetting is measured on."""
    files.write_json(path, [{**vars(s), "texts": list(s.texts)} for s in sets])


def read_sets(path: Path) -> tuple[TextSet, ...]:
    """Read them."""
    return tuple(TextSet(s["name"], tuple(s["texts"]), s["source"]) for s in files.read_json(path))


def rounded(value: float | None) -> float | None:
    """Six digits; whole numbers and what is missing stay."""
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")


def unextended(base: BaseModel, model: Any = None) -> Start:
    """A base model without new tokens, as one with new tokens is tuned and measured; `model` in place of its own."""
    none = range(base.vocab_size, base.vocab_size)
    return Start(model or base.model, base.tokenizer, none, base)


def phase1_training(
    variant: str, base: BaseModel, extension: Extension, data: Phase1Data, config: Phase1Config
) -> Phase1Training:
    """Phase 1 of a variant, ready to run."""
    recipe = parse_variant(variant)
    student = new_student(recipe, base, extension.tokens, config, data.aligned, extension.spell)
    return Phase1Training(recipe, student, data, config)


def records_of(training: Phase1Training) -> list[dict[str, Any]]:
    """Run it, and return what it says of each epoch."""
    return [event.record for event in training.run() if event.record is not None]


def rows_of(student: Student) -> dict[str, torch.Tensor]:
    """Input and head rows of a student, (N, D) each, in float32 on the host, as they are kept in a file."""
    rows = {"input": student.input_rows, "head": student.head_rows}
    return {name: values.detach().cpu().contiguous() for name, values in rows.items()}


def median_rate(seconds: Sequence[float], tokens: Sequence[int]) -> float:
    """Tokens per second: the median over steps."""
    return statistics.median(n / s for s, n in zip(seconds, tokens, strict=True))


def ratio(above: float | None, below: float | None) -> float | None:
    """A quotient, None where a side is missing."""
    return above / below if above is not None and below else None


def free() -> None:
    """Give memory back and forget the peak."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def synchronise() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Peak:
    """Peak memory between the start and a reading, in bytes above what was held at the start.

    On CUDA what the allocator handed out; on a CPU the resident set of this process, whose high-water mark Linux lets a
    process reset (`/proc/self/clear_refs`).
    """

    def __init__(self) -> None:
        gc.collect()
        free()
        if not torch.cuda.is_available():
            Path("/proc/self/clear_refs").write_text("5")
        self.held = torch.cuda.memory_allocated() if torch.cuda.is_available() else own_memory("VmRSS")

    def bytes(self) -> int:
        """The peak so far."""
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else own_memory("VmHWM")
        return max(0, peak - self.held)


def own_memory(name: str) -> int:
    """Bytes of this process by a name of `/proc/self/status`, such as `VmRSS`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def table_of(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """A table in Markdown; columns `right`, counted from 0, are aligned to the right."""
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def told_interval(values: Iterable[float | None], form: str) -> str:
    """Tell an estimate with its limits, `0.12 [0.10, 0.14]`; ∞ where a limit is missing."""
    middle, low, high = ("∞" if value is None else format(value, form) for value in values)
    return f"{middle} [{low}, {high}]"


def told_range(values: Iterable[float]) -> str:
    """Tell the middle one of several readings with the lowest and the highest, `1.10 (0.90 to 1.20)`."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*values)


def fill_page(page: Path, parts: Mapping[str, str]) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- end -->` on a page; SystemExit where a name is missing."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, found = re.subn(pattern, lambda m, p=part: f"{m[1]}{p}\n{m[2]}", text, flags=re.S)
        if found != 1:
            raise SystemExit(f"{page}: expected one <!-- {name} --> … <!-- end -->, found {found}")
    page.write_text(text, encoding="utf-8")


def told_speed(row: Mapping[str, Any]) -> str:
    """Tell characters a second as a share of the base's, with the range of several readings where there are any."""
    if "speed_gain" not in row:
        return ""
    gain = row["speed_gain"]
    return told_range((gain, *row["speed_range"])) if "speed_range" in row else f"{gain:.2f}"
