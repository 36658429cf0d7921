"""Write the tables and figures of docs/performance.md from results/bench/*.json; what is not there is "not measured".

    python tests/bench/report.py [--results results/bench] [--docs docs]

Only text between `<!-- name -->` and `<!-- end -->` is replaced, so no number of that page is typed by hand.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import large
import matplotlib.pyplot as plt
import numpy as np
import torch
from bench_parts import NOTHING, SHAPES, fill_page, layer_weights, ratio, table_of
from large import RANK
from phase1 import WAYS, WORKLOADS

from vocabx_utils import files
from vocabx_utils.figures.theme import PALETTE, cycle_style, save_figure, theme
from vocabx_utils.training.softmax import default_chunk

GOALS: dict[str, dict[str, float]] = {  # of the rows with fused blocks where there is a compiler
    "qwen-t1024": {
        "speedup_vs_plain": 2.0, "peak_bytes": 10e9, "floor_share": 0.92, "ceiling_share": 0.45,
        "teacher_ceiling_share": 0.6, "busy_host_ratio": 0.9,
    },
    "qwen-t50": {"tokens_per_s": 60_000},
    "llama-6.7b-v32k": {"ceiling_share": 0.55},
    "llama-6.7b-v128k": {"ceiling_share": 0.55},
    "smollm2-cpu": {"speedup_vs_literal": 1.4},
}  # fmt: skip
LOWER = {"peak_bytes", "peak_ratio_vs_plain"}  # better where smaller
COLUMNS = {  # of the table of phase 1, with what each is divided by and the digits that it is worth
    "speedup_vs_plain": ("ours / plain", 1, 2),
    "speedup_vs_literal": ("ours / literal", 1, 2),
    "peak_bytes": ("peak, GB", 1e9, 1),
    "peak_ratio_vs_plain": ("peak / plain", 1, 2),
    "floor_share": ("of floor", 1, 2),
    "ceiling_share": ("of ceiling", 1, 2),
    "teacher_ceiling_share": ("teacher's pass, of ceiling", 1, 2),
    "teacher_file_share": ("with its file", 1, 2),
    "busy_host_ratio": ("with a busy host", 1, 2),
}
LARGE, LARGE_TOKENS = SHAPES["llama-3-70b"], 8192
GIB = 1 << 30


def read(folder: Path, stem: str) -> dict[str, dict[str, Any]]:
    """Results by device: files `<stem>-<device>.json`, details left out."""
    found = {}
    for path in sorted(folder.glob(f"{stem}-*.json")):
        if not path.stem.endswith("-details"):
            found[path.stem.removeprefix(f"{stem}-")] = files.read_json(path)
    return found


def phase1_table(results: dict[str, dict[str, Any]]) -> str:
    """One line per workload, device and kind of blocks, and one "not measured" for each workload without any."""
    heads = ["workload", "device", "blocks", "tokens/s: literal", "plain", "ours", "floor"]
    heads += [title for title, _, _ in COLUMNS.values()]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name in GOALS:
        rows = [found[name] for found in results.values() if name in found]
        for row in rows:
            for blocks in ("unfused", "fused"):
                if row["tokens_per_s"][blocks]["ours"] is not None:
                    lines.append(_phase1_line(name, row, blocks))
        if not rows:
            lines.append(f"| {name} | {NOTHING} |" + " |" * (len(heads) - 2))
    return "\n".join(lines)


def _phase1_line(name: str, row: dict[str, Any], blocks: str) -> str:
    judged = blocks == "fused" or row["tokens_per_s"]["fused"]["ours"] is None
    goals = GOALS[name] if judged else {}
    rates = [row["tokens_per_s"][blocks][engine] for engine in ("literal", "plain", "ours", "floor")]
    shown = [_number(rate, 0) for rate in rates]
    shown[2] = _against(rates[2], goals.get("tokens_per_s"), False, 0)
    for key, (_, unit, digits) in COLUMNS.items():
        value, goal = row[key][blocks], goals.get(key)
        shown.append(_against(value and value / unit, goal and goal / unit, key in LOWER, digits))
    return f"| {name} | {row['device']} | {blocks} | " + " | ".join(shown) + " |"


def parts_table(details: dict[str, dict[str, Any]]) -> str:
    """What each part of ours does to the wall time until literal's last KL."""
    lines = [
        "| workload | device | literal ends after, s | at KL | cached teacher, s | + boundary anchor, s "
        "| + windows, s | + fused blocks, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, workload in WORKLOADS.items():
        if workload.quality is None:
            continue
        rows = [found[name] for found in details.values() if found.get(name, {}).get("quality")]
        for row in rows:
            ways = row["quality"]
            first = ways.get("literal", {})
            reached = [_reached(ways.get(way)) for way in WAYS[1:]]
            shown = [_number(first.get("seconds"), 1), _number(first.get("kl_identical"), 4), *reached]
            lines.append(f"| {name} | {row['device']} | " + " | ".join(shown) + " |")
        if not rows:
            lines.append(f"| {name} | {NOTHING} | | | | | | |")
    return "\n".join(lines)


def teacher_table(results: dict[str, dict[str, Any]]) -> str:
    """The teacher's pass by way and tokens of a pass, with its kernels where they were read."""
    kinds = ("products", "attention", "gate of the MLP", "other")
    heads = ["workload", "device", "way", "tokens of a pass", "texts", "ms", "of ceiling"]
    heads += [f"{kind}, ms" for kind in kinds]
    lines = []
    for found in results.values():
        for row in found["rows"]:
            cells = [row["workload"], found["device"], row["way"], _number(row["tokens_of_a_pass"], 0)]
            cells += [_number(row["texts"], 0), _number(row["milliseconds"], 1), _number(row["share"], 2)]
            parts = row.get("kernels", {})
            lines.append([*cells, *(_number(parts[kind], 1) if kind in parts else "" for kind in kinds)])
    return table_of(heads, lines) if lines else NOTHING


def _reached(row: dict[str, Any] | None) -> str:
    if not row or "error" in row:
        return NOTHING
    if row["reached_seconds"] is None:
        return f"not within {row['seconds']:.1f} (KL {row['kl_identical']:.4f})"
    return f"{row['reached_seconds']:.1f}"


def finetune_table(results: dict[str, dict[str, Any]]) -> str:
    """Stages a and b by shape."""
    goals = {"qwen2.5-coder-0.5b": 0.30, "llama-6.7b": 0.45}
    lines = [
        "| shape | stage | device | blocks fused | tokens/s | of ceiling | peak, GiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape, goal in goals.items():
        for stage in ("a", "b"):
            rows = [
                (found["device"], row)
                for found in results.values()
                for row in found["workloads"]
                if (row["shape"], row["stage"]) == (shape, stage) and "error" not in row
            ]
            for device, row in rows:
                numbers = [_number(row["tokens_per_s"], 0), _against(row["ceiling_share"], goal, False)]
                fused = "yes" if row["compiled"] else "no"
                peak = _number(row["peak_bytes"] / GIB, 1)
                lines.append(f"| {shape} | {stage} | {device} | {fused} | " + " | ".join([*numbers, peak]) + " |")
            if not rows:
                lines.append(f"| {shape} | {stage} | {NOTHING} | | | {_goal(goal, False)} | |")
    return "\n".join(lines)


def scaling_table(results: dict[str, dict[str, Any]]) -> str:
    """Tokens per second by number of cards at the same global step."""
    rows = [(part, row) for found in results.values() for part, row in found.items()]
    if not rows:
        return f"Two cards against one: {NOTHING} (to reach: 1.8 times)."
    lines = [
        "| part | device | tokens of a step | of a pass | tokens/s by processes | speed-up |",
        "|---|---|---|---|---|---|",
    ]
    for part, row in rows:
        rates = ", ".join(f"{count}: {rate:,.0f}" for count, rate in row["tokens_per_s"].items())
        counts = " | ".join(_number(row.get(key), 0) for key in ("tokens_per_step", "tokens_per_pass"))
        judged = _against(row["speedup"], 1.8, False)
        lines.append(f"| {part} | {row['device']} | {counts} | {rates} | {judged} |")
    return "\n".join(lines)


def head_table(results: dict[str, dict[str, Any]]) -> str:
    """What an odd number of columns costs the products with the head."""
    if not results:
        return f"Odd and even vocabularies: {NOTHING}."
    lines = [
        "| device | columns of the logits | three products, µs a position | fused passes, µs a position |",
        "|---|---|---|---|",
    ]
    for found in results.values():
        for columns, row in found["us_per_position"].items():
            times = " | ".join(_number(row[key], 2) for key in ("products", "fused_passes"))
            lines.append(f"| {found['device']} | {int(columns):,} | {times} |")
    return "\n".join([*lines, *_choices(results)])


def _choices(results: dict[str, dict[str, Any]]) -> list[str]:
    """What one greedy choice takes with new rows, where it was read."""
    told = [
        f"{_number(found['choice_us'][columns], 0)} µs with {int(columns):,} rows ({found['device']})"
        for found in results.values()
        for columns in found.get("choice_us", {})
    ]
    return ["", f"One greedy choice for 64 replies: {', '.join(told)}."] if told else []


def quick_table(path: Path) -> str:
    """Wall and CPU seconds of notebooks, before and after."""
    if not path.exists():
        return f"Notebooks before and after: {NOTHING}."
    lines = [
        "| notebook | wall s before | after | share | CPU s before | after | share | peak MiB before | after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, sides in files.read_json(path)["notebooks"].items():
        cells = []
        for key, shared in (("wall_s", True), ("cpu_s", True), ("peak_mib", False)):
            before, after = (sides.get(side, {}).get(key) for side in ("before", "after"))
            cells += [_number(before, 0), _number(after, 0)]
            cells += [_number(ratio(after, before), 2)] if shared else []
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def quick_run_sentence(path: Path) -> str:
    """Minutes of the whole series in the run whose times README has."""
    if not path.exists():
        return f"The whole series: {NOTHING}."
    minutes = sum(run["seconds"] for run in files.read_json(path).values()) / 60
    return (
        f"The whole series took {minutes:.1f} minutes in the run whose times README has (`results/bench/{path.name}`)."
    )


def make_test_table(path: Path) -> str:
    """Minutes of `make test` by part, with minutes of the processor in brackets, a line for each state of the tests."""
    if not path.exists():
        return f"`make test`: {NOTHING}."
    jobs = ("unit tests", "03_phase1_training", "04_fine_tuning", "05_benchmark_evaluation")
    lines = []
    for label, row in files.read_json(path).items():
        if label != "machine":
            parts = [row["jobs"][job] for job in jobs]
            processor = sum(job["cpu_minutes"] for job in row["jobs"].values())
            told = [f"{part['minutes']:.1f} ({part['cpu_minutes']:.1f})" for part in parts]
            lines.append([label, row["revision"], f"{row['minutes']:.1f}", *told, f"{processor:.1f}"])
    return table_of(["", "revision", "all", "unit tests", "03", "04", "05", "processor, all"], lines)


def cpu_products_table(path: Path) -> str:
    """A pass of the blocks with products in bfloat16, beside float32."""
    if not path.exists():
        return NOTHING
    content = files.read_json(path)
    header = ["products", "seconds", "of float32", "hidden states off", "gradient of the inputs off"]
    lines = [
        [name, f"{r['median_s']:.2f}", f"{r['of_float32']:.2f}", f"{r['hidden_off']:.1%}", f"{r['gradient_off']:.1%}"]
        for name, r in content["ways"].items()
    ]
    shape = f"{content['rows']} x {content['length']} tokens, {content['model']}, {content['threads']} threads"
    return f"{shape}, {content['device']}:\n\n{table_of(header, lines)}"


def arithmetic_table(length: dict[str, int]) -> str:
    """FLOP per token by part, calculated, with every position compared."""
    lines = [
        "| shape | T | blocks 4P | attention 3A | student's head 2H | gradient 2H | literal / ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape, tokens in length.items():
        blocks, head, attention = sizes(SHAPES[shape], tokens)
        ours = 4 * blocks + 3 * attention + 4 * head
        literal = ours + 2 * blocks + attention + 2 * head  # the teacher once more
        parts = [4 * blocks, 3 * attention, 2 * head, 2 * head]
        shown = " | ".join(f"{part / 1e9:.2f} G ({part / ours:.0%})" for part in parts)
        lines.append(f"| {shape} | {tokens:,} | {shown} | {literal / ours:.2f} |")
    return "\n".join(lines)


def sizes(shape: dict[str, Any], tokens: int) -> tuple[float, float, float]:
    """P, H and A of the FLOP formula from a shape."""
    width, layers = shape["hidden_size"], shape["num_hidden_layers"]
    return layer_weights(shape) * layers, width * shape["vocab_size"], 2 * tokens * layers * width


def large_table(cards: tuple[int, ...] = (2, 4, 8, 16)) -> str:
    """Bytes per card of a 70B base whose blocks are sharded, calculated."""
    parts = {(count, rank): large.plan(LARGE, count, LARGE_TOKENS, rank=rank) for rank in (0, RANK) for count in cards}
    heads = ["", "cards", *next(iter(parts.values())), "sum", "sum without recomputation"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for (count, rank), bytes_of in parts.items():
        whole = large.plan(LARGE, count, LARGE_TOKENS, rank=rank, recompute=False)
        shown = [*bytes_of.values(), sum(bytes_of.values()), sum(whole.values())]
        name = f"LoRA, rank {rank}" if rank else "phase 1"
        lines.append(f"| {name} | {count} | " + " | ".join(f"{part / GIB:.1f}" for part in shown) + " |")
    blocks, head, _ = sizes(LARGE, 1)
    total = (blocks + 2 * head) / 1e9
    head_line = (
        f"GiB per card, {total:.1f} billion parameters in bf16, N = {large.NEW_TOKENS}, passes of {LARGE_TOKENS:,} "
        "tokens, blocks recomputed:\n\n"
    )
    return head_line + "\n".join(lines)


def large_measured(results: dict[str, dict[str, Any]]) -> str:
    """What was measured of such a base, beside what was calculated for the same sizes."""
    lines = [
        "| part | shape | device | cards | tokens of a pass | steps | tokens/s | of ceiling | peak, GiB a card "
        "| calculated | gathering alone, s a step | step, s |",
        "|---" * 12 + "|",
    ]
    loads, fewer = [], []
    for found in results.values():
        for part, goal in (("phase1", 0.35), ("lora", None)):
            row = found.get(part, {})
            if "tokens_per_s" in row:
                lines.append(_large_line(part, row, goal))
        if "load_seconds" in found.get("load", {}):
            loads.append(_load_line(found["load"]))
        if "4bit" in found.get("quantised", {}):
            fewer.append(_quantised_table(found["quantised"]))
    if len(lines) == 2:
        lines.append(f"| phase1, lora | llama-3-70b | {NOTHING} |" + " |" * 9)
    return "\n\n".join(["\n".join(lines), *(loads or [f"Loading into shards: {NOTHING}."]),
                        *(fewer or [f"A 4-bit base: {NOTHING}."])])  # fmt: skip


def _large_line(part: str, row: dict[str, Any], goal: float | None) -> str:
    took = float(np.median(row["step_seconds"][row["warmup"] :] or row["step_seconds"]))
    peak = row["peak_card_bytes"] / GIB if row["peak_card_bytes"] else None
    shown = [
        part, row["shape"], row["device"], row["processes"], f"{row['tokens_per_pass']:,}", row["steps"],
        _number(row["tokens_per_s"], 0), _against(row["ceiling_share"], goal, False), _number(peak, 1),
        _number(sum(row["calculated_bytes"].values()) / GIB, 1), _number(row.get("gather_seconds"), 2),
        _number(took, 2),
    ]  # fmt: skip
    return "| " + " | ".join(map(str, shown)) + " |"


def _load_line(row: dict[str, Any]) -> str:
    size = row["file_bytes"] / 1e9
    cold = ""
    if "cold_load_seconds" in row:
        cold = f", and in {row['cold_load_seconds']:.1f} s ({size / row['cold_load_seconds']:.1f} GB/s) from the disk"
    card = f"{row['peak_card_bytes'] / GIB:.1f} GiB on a card, " if row["peak_card_bytes"] else ""
    rate = size / row["load_seconds"]
    return (
        f"Loading, {row['device']}: {row['layers']} layers of the shape {row['shape']}, {size:.1f} GB in safetensors, "
        f"lie in {row['processes']} shards after {row['load_seconds']:.1f} s ({rate:.1f} GB/s) from the page "
        f"cache{cold}. Peak of a process: {card}{row['peak_host_bytes'] / GIB:.1f} GiB of the host's memory, mapped "
        f"files not counted. Calculated for a card: {row['weight_bytes_per_card'] / GIB:.1f} GiB."
    )


def _quantised_table(row: dict[str, Any]) -> str:
    lines = [
        f"A 4-bit base, {row['device']}, {row['texts']} texts, {row['new_tokens']} new tokens, `mean_kl_last`:",
        "",
        "| blocks | weights, MB | base, bits per byte | KL at the last subtoken, start | end "
        "| end, on the model as it is | CE there, nats | seconds |",
        "|---" * 8 + "|",
    ]
    for name, title in (("none", "bf16"), ("4bit", "4 bits (NF4)")):
        one = row[name]
        there = one["on_the_model_as_it_is"]
        numbers = [
            _number(one["weight_bytes"] / 1e6, 0), _number(one["end"]["base_bpb"], 4),
            *(_number(kl, 4) for kl in (one["start"]["kl_last"], one["end"]["kl_last"], there["kl_last"])),
            _number(there["ce"], 4), _number(one["seconds"], 1),
        ]  # fmt: skip
        lines.append(f"| {title} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


WAY_LABELS = {
    "literal": "literal", "cached": "cached teacher", "boundary": "+ boundary anchor", "windows": "+ windows",
    "fused": "+ fused blocks",
}  # fmt: skip
WORKLOAD_TITLES = {  # of the workloads whose time to equal quality is measured
    "qwen-t1024": "Qwen2.5-Coder-0.5B",
    "smollm2-cpu": "SmolLM2-135M",
}
WAY_STYLES = {way: cycle_style(at) for at, way in enumerate(WAYS)}


def cost_figure(details: dict[str, dict[str, Any]], folder: Path) -> str:
    """Wall seconds against tokens read for each way of training; returns its alternative text, none without data."""
    panels = [
        (f"{WORKLOAD_TITLES.get(name, name)}, {row['device']}", row["quality"])
        for found in details.values()
        for name, row in found.items()
        if any("curve" in way for way in row.get("quality", {}).values())
    ]
    if not panels:
        return ""
    figure, axes = plt.subplots(1, len(panels), figsize=(4.8 * len(panels), 4.0), squeeze=False)
    told = []
    for ax, (title, ways) in zip(axes[0], panels, strict=True):
        ends = []
        for at, (way, row) in enumerate(ways.items()):
            if "curve" not in row:
                continue
            x, y = ([point[key] for point in row["curve"]] for key in ("tokens", "seconds"))
            # a way as fast as another stays seen below it: earlier lines are thicker, and marks take turns
            turns = {"markevery": (at % 2, 2)} if len(x) > 3 else {}
            ax.plot(x, y, **WAY_STYLES[way], **turns, lw=3.4 - 0.5 * at, ms=7 - 0.5 * at, label=WAY_LABELS[way])
            ends.append(f"{WAY_LABELS[way]} {row['curve'][-1]['tokens']:,} tokens in {row['seconds']:.0f} s")
        ax.set(title=title, xlabel="student tokens read", ylabel="wall time, s (teacher's pass included)")
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.locator_params(axis="x", nbins=5)
        ax.legend(title="way of training")
        told.append(f"{title}: {'; '.join(ends)}")
    alt = "Line charts of measured wall seconds against student tokens read in phase 1, a curve for each way to train."
    alt = " ".join([alt, *(f"{one}." for one in told)])
    save_figure(figure, "cost", alt, folder)
    plt.close(figure)
    return alt


def memory_figure(details: dict[str, dict[str, Any]], folder: Path, positions: int = 4096) -> str:
    """Bytes of logits against V: calculated lines, measured peaks if there are any; returns its alternative text."""
    vocab = np.geomspace(16_000, 260_000, 40)
    literal = 4 * 4.0 * positions * vocab  # logits and log-probabilities of teacher and student, float32
    device = torch.device("cuda")
    ours = np.array([2 * default_chunk(int(v), device) * v * (4 + 2) for v in vocab])
    figure, ax = plt.subplots(figsize=(9.0, 4.0))
    colors = {"literal": PALETTE[0], "ours": PALETTE[4]}
    lines = (
        ("literal", literal, "-", f"literal: logits of {positions:,} positions"),
        ("ours", ours, "--", "ours: one chunk of logits on a GPU"),
    )
    for engine, values, line, label in lines:
        ax.loglog(vocab, values / GIB, line, color=colors[engine], marker="", label=label)
    marks = {"literal": "s", "ours": "o"}
    measured = []
    for found in details.values():
        for name, row in found.items():
            for engine, mark in marks.items():
                seen = row.get("engines", {}).get(engine, {})
                peak, columns = seen.get("peak_bytes_above_weights"), seen.get("vocab")
                if peak and columns and name in GOALS:
                    ax.loglog([columns], [peak / GIB], mark, color=colors[engine], mec="0.2", ms=6.5)
                    measured.append(f"{name} {engine} {peak / GIB:.2f} GiB")
                    left = (-6, 5 if engine == "literal" else -11)  # below the line that runs past
                    offset, side = ((7, -3), "left") if columns > 140_000 else (left, "right")
                    ax.annotate(name, (columns, peak / GIB), offset, textcoords="offset points", ha=side, size="small")
    ax.set(xlabel="V, original ids", ylabel="memory, GiB (logarithmic)", xlim=(None, 420_000))  # room for the names
    ax.set_xticks([16_000, 32_000, 64_000, 128_000, 256_000], ["16,000", "32,000", "64,000", "128,000", "256,000"])
    ticks = [1, 2, 5, 10, 20, 50]
    ax.set_yticks(ticks, map(str, ticks))
    ax.minorticks_off()
    for engine, mark in marks.items():
        ax.plot([], [], mark, color=colors[engine], mec="0.2", ms=6.5, label=f"{engine}: whole peak above weights")
    handles, labels = ax.get_legend_handles_labels()
    for part, title, loc in ((slice(0, 2), "calculated", "upper"), (slice(2, 4), "measured", "lower")):
        words = {"labels": labels[part], "title": title, "loc": f"outside right {loc}", "alignment": "left"}
        figure.legend(handles=handles[part], **words)
    ends = (
        f"from {literal[0] / GIB:.1f} to {literal[-1] / GIB:.1f} GiB, ours stays at {ours.max() / GIB:.1f} GiB or less"
    )
    peaks = "; ".join(measured) or "none"
    alt = f"Line chart of memory in GiB against V, calculated: literal grows {ends}. Measured peaks: {peaks}."
    save_figure(figure, "memory", alt, folder)
    plt.close(figure)
    return alt


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _goal(goal: float | None, lower: bool) -> str:
    return "" if goal is None else f"(to reach: {'at most' if lower else 'at least'} {goal:,g})"


def _against(value: float | None, goal: float | None, lower: bool, digits: int = 2) -> str:
    if value is None or goal is None:
        return f"{_number(value, digits)} {_goal(goal, lower)}".strip()
    reached = value <= goal if lower else value >= goal
    return f"{value:,.{digits}f} {'✓' if reached else '✗'} {_goal(goal, lower)}"


def write(results: Path, docs: Path) -> None:
    """Fill the page and draw both figures."""
    theme()
    details = {
        path.stem.removeprefix("phase1-").removesuffix("-details"): files.read_json(path)
        for path in sorted(results.glob("phase1-*-details.json"))
    }
    cost, memory = cost_figure(details, docs / "figures"), memory_figure(details, docs / "figures")
    lengths = {"qwen2.5-coder-0.5b": 1024, "llama-6.7b": 2048, "llama-6.7b-v128k": 2048}
    parts = {
        "phase1": phase1_table(read(results, "phase1")),
        "parts": parts_table(details),
        "finetune": finetune_table(read(results, "finetune")),
        "scaling": scaling_table(read(results, "scaling")),
        "teacher": teacher_table(read(results, "teacher")),
        "head": head_table(read(results, "head-products")),
        "arithmetic": arithmetic_table(lengths),
        "large": large_table(),
        "large-measured": large_measured(read(results, "large")),
        "quick": quick_table(results / "quick-series.json"),
        "quick-run": quick_run_sentence(results / "quick-run.json"),
        "make-test": make_test_table(results / "make-test.json"),
        "cpu-products": cpu_products_table(results / "cpu-products.json"),
        "cost": f"![{cost}](figures/cost.svg)" if cost else f"Cost against tokens: {NOTHING}.",
        "memory": f"![{memory}](figures/memory.svg)",
    }
    fill_page(docs / "performance.md", parts)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/bench"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    options = parser.parse_args()
    write(options.results, options.docs)


if __name__ == "__main__":
    main()
