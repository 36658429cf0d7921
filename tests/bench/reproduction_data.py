"""The data of the reproduction, made once without a GPU and small enough to travel (below 30 MB, nothing committed).

Pairs of a docstring and its function come from installed packages, and no package serves two splits: the tokenizer's
pairs choose new tokens, the training pairs teach rows and models, the validation pairs judge. A pair that shares text
with a problem of one of the four benchmarks, or defines its function, is left out. A folder holds

    packages.jsonl.gz       the pairs with their split, as `anchors.py` reads them
    functions.jsonl.gz      of each training and validation pair the function with its docstring, and where that ends
    extensions.tar.xz       extensions by name, which `unpack` lays out: `<label>-packages-<strategy>-<N>`
    own.jsonl.gz            the bodies that the base model itself writes for them (`reproduction.py own`, on a GPU)
    forgetting.json         texts of the domain, of another language and of English
    data.json               counts; the same goes to the results, to be committed

Extensions: `merges` with 100, 400, 800 and 1,600 tokens that each stand in the training pairs four times or more,
`rare` with 800 as the thesis has them (no such minimum), and `phrases` with 800. Where the 1,000 tokenizer pairs do
not offer so many, further pairs of their packages are read, and then the training pairs: `data.json` says so
(`chosen_on`).
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import gzip
import importlib.metadata
import json
import re
import sys
import tarfile
import tempfile
import textwrap
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_parts import known_lines, read_sets, read_splits, write_sets

from vocabx_utils import corpus, files, models
from vocabx_utils.corpus import Pair, Rendered
from vocabx_utils.evaluation.benchmarks import BENCHMARKS, Problem, load_benchmark
from vocabx_utils.evaluation.contamination import decontaminate
from vocabx_utils.evaluation.kept import kept_problems
from vocabx_utils.evaluation.likelihood import new_token_counts
from vocabx_utils.training.forgetting import forgetting_texts
from vocabx_utils.vocabulary.extend import add_tokens, extend_tokenizer
from vocabx_utils.vocabulary.options import Strategy, TokenOptions
from vocabx_utils.vocabulary.proposals import select_tokens
from vocabx_utils.vocabulary.tokens import Extension, load_extension

PACKAGES = {
    "tokenizer": ("pandas", "sklearn"),
    "train": (
        "numpy", "scipy", "matplotlib", "statsmodels", "xarray", "dask", "skimage", "networkx", "astropy", "sktime",
    ),
    "validation": ("seaborn", "mne", "lifelines", "tslearn", "pymc", "plotnine"),
}  # fmt: skip
SIZES = {"tokenizer": 1000, "further": 2500, "train": 5000, "validation": 2000}
KINDS = ("pairs", "functions", "completion", "own", "mixed")
LABEL = "Qwen2.5-Coder-0.5B-Instruct"
N = 800
OWN = "own.jsonl.gz"
_MOST_CHARS = 1600  # of an answer
_LONGEST = 2500  # characters of a function with its docstring, for the kind `completion`
_METHOD = re.compile(r"```python\n(@|async |def \w+\((self|cls)\b)")


# --- pairs ----------------------------------------------------------------------------------------------------------


def read_pairs(
    packages: Mapping[str, Sequence[str]], sizes: Mapping[str, int], problems: Sequence[Sequence[Problem]]
) -> tuple[dict[str, list[Pair]], dict[str, Any]]:
    """Read each split's packages, drop what touches a problem, and draw; no package speaks for all of a split."""
    splits, told, seen = {}, {}, set[str]()
    for split, names in packages.items():
        wanted = {split: sizes[split]} | ({"further": sizes["further"]} if split == "tokenizer" else {})
        share = max(1, round(1.6 * sum(wanted.values()) / len(names)))
        drawn = [corpus.pairs_from_packages([name], max_chars=_MOST_CHARS) for name in names]
        pairs = [pair for some in drawn for pair in _fewer(some, share)]
        fresh = [pair for pair in pairs if corpus._body(pair) not in seen]
        seen |= {corpus._body(pair) for pair in fresh}
        clean, reports = decontaminate(fresh, problems)
        room = len(clean)
        for name, size in wanted.items():
            wanted[name] = min(size, room)
            room -= wanted[name]
        splits |= corpus.split_pairs(clean, wanted)
        told[split] = {
            "pairs": len(splits[split]), "offered": len(fresh), "dropped": len(fresh) - len(clean),
            "packages": dict(collections.Counter(p.source.split("/")[0] for p in splits[split])),
            "contamination": [report.row() for report in reports],
        }  # fmt: skip
    return splits, told


def _fewer(pairs: Sequence[Pair], limit: int) -> list[Pair]:
    return corpus.split_pairs(pairs, {"drawn": min(limit, len(pairs))})["drawn"]


@dataclass(frozen=True)
class Function:
    """A pair's function with its docstring: `code`, and the character behind the docstring, where its body begins."""

    code: str
    body: int


def read_functions(pairs: Sequence[Pair]) -> list[Function | None]:
    """Find the functions of pairs again, with docstrings; None where it is too long, or several pairs share it."""
    by_source: dict[str, dict[str, Function]] = {}
    found = []
    for pair in pairs:
        if pair.source not in by_source:
            by_source[pair.source] = _functions_of(pair.source)
        known = by_source[pair.source].get(pair.answer)
        found.append(known if known is not None and len(known.code) <= _LONGEST else None)
    return found


def _functions_of(source: str) -> dict[str, Function]:
    package, _, path = source.partition("/")
    text = (corpus._package_root(package) / path).read_text(encoding="utf-8", errors="replace")
    lines, found = text.splitlines(keepends=True), {}
    for node in corpus.walk_statements(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            whole = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno])).rstrip() + "\n"
            behind = (node.body[0].end_lineno or node.body[0].lineno) - node.lineno + 1
            body = len("".join(whole.splitlines(keepends=True)[:behind]))
            answer = f"```python\n{corpus._source_without_docstring(node, lines)}```"
            found[answer] = Function(whole, body)
    return found


def render_kind(
    pairs: Sequence[Pair],
    functions: Sequence[Function | None],
    kind: str,
    tokenizer: Any,
    own: Mapping[int, str] | None = None,
) -> list[Rendered]:
    """Render pairs in one of five ways; the same texts whatever the tokenizer, but for its begin and end marks.

    `pairs` are all as they are, `functions` those that are neither methods nor decorated, and `completion` those again,
    asked for as HumanEval asks in the thesis's format: head and docstring stand in the answer block already. `own` asks
    the same and answers with what the base model wrote (`own`, by number of the pair), and `mixed` answers every second
    one so.
    """
    if kind == "pairs":
        return [corpus.render(pair, "thesis", tokenizer) for pair in pairs]
    if kind == "functions":
        return [corpus.render(pair, "thesis", tokenizer) for pair in pairs if not _METHOD.match(pair.answer)]
    end, texts = tokenizer.eos_token or "", []
    for k, found in completions(pairs, functions):
        asked_of_base = kind == "own" or (kind == "mixed" and len(texts) % 2 == 0)
        written = (own or {}).get(k) if asked_of_base else None
        if kind == "own" and written is None:
            continue
        body, head = written or found.code[found.body :], completion_prompt(found, tokenizer)
        texts.append(Rendered(f"{head}{body}```{end}", len(head)))
    return texts


def completions(pairs: Sequence[Pair], functions: Sequence[Function | None]) -> list[tuple[int, Function]]:
    """Number and function of the pairs that can be asked for by their heads."""
    return [
        (k, found)
        for k, (pair, found) in enumerate(zip(pairs, functions, strict=True))
        if not _METHOD.match(pair.answer) and found is not None and found.code[found.body :].strip()
    ]


def completion_prompt(found: Function, tokenizer: Any) -> str:
    """The prompt that holds a function's head and docstring already."""
    asked = "Complete the following Python function so that it does what its docstring says."
    return corpus.prompt(asked, "thesis", tokenizer, prefill=f"```python\n{found.code[: found.body]}")


# --- extensions -----------------------------------------------------------------------------------------------------


def make_extensions(
    tokenizer: Any, texts: Mapping[str, Sequence[str]], sizes: Sequence[int], phrases: int, beginning: Path
) -> Iterator[tuple[str, Extension]]:
    """Yield name and extension, each kept at once in a folder whose path begins so, and read back where it is there.

    A size that the texts do not offer is told and left out.
    """
    rare = N if N in sizes else max(sizes)
    wanted = [*(f"merges-{n}" for n in sizes), f"rare-{rare}", *([f"phrases-{phrases}"] if phrases else [])]
    for name in wanted:
        folder = beginning.with_name(beginning.name + name)
        if not (folder / "tokens.json").exists():
            made = _extended(tokenizer, texts, name)
            if made is None:
                continue
            made.save(folder)
        yield name, load_extension(folder)


_CHOSEN_ON = {
    "merges": (("tokenizer", 2), ("tokenizer, further", 2), ("tokenizer, further, train", 4)),
    "phrases": (("tokenizer", 4), ("tokenizer, further", 4)),
}  # fmt: skip


def _extended(tokenizer: Any, texts: Mapping[str, Sequence[str]], name: str) -> Extension | None:
    kind, _, n = name.partition("-")
    if kind == "rare":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return add_tokens(tokenizer, select_tokens(texts["tokenizer"], tokenizer, int(n)), "merges")
    strategy: Strategy = "merges" if kind == "merges" else "phrases"
    for names, count in _CHOSEN_ON[kind]:
        chosen = [text for name in names.split(", ") for text in texts[name]]
        options = TokenOptions(min_count=count, min_files=1 if strategy == "merges" else 3)
        try:
            made = extend_tokenizer(tokenizer, chosen, int(n), strategy, options, training_texts=texts["train"])
        except ValueError as error:
            print(f"{name}, {names} pairs: {error}", flush=True)
            continue
        return dataclasses.replace(made, report={**made.report, "chosen_on": f"{names} pairs"})
    return None


def unpack(folder: Path) -> Path:
    """Lay the extensions out beside their archive, once; return their folder."""
    target = folder / "extensions"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:  # whole or not at all
            with tarfile.open(folder / "extensions.tar.xz") as archive:
                archive.extractall(place, filter="data")
            (Path(place) / "extensions").rename(target)
    return target


# --- prepare --------------------------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> None:
    """Write the folder and print its counts."""
    began = time.perf_counter()
    sys.path.append(str(options.packages)) if options.packages else None
    problems = {name: kept_problems(name) for name in options.benchmarks}
    every = [load_benchmark(name, **({"split": "all"} if name == "mbpp" else {})) for name in options.benchmarks]
    splits, told = read_pairs(PACKAGES, SIZES, every)
    options.out.mkdir(parents=True, exist_ok=True)
    write_pairs(options.out, splits)
    print({name: (row["pairs"], row["dropped"]) for name, row in told.items()}, f"{_passed(began)}", flush=True)
    tokenizer = models.load_tokenizer(options.model)
    # rendered without a tokenizer: begin and end marks spelled out must not become parts of new tokens
    texts = {name: [corpus.render(pair, "thesis").text for pair in pairs] for name, pairs in splits.items()}
    about: dict[str, Any] = {"label": options.label, "splits": told, "versions": _versions(), "extensions": {}}
    beginning = options.out / "extensions" / f"{options.label}-packages-"
    for name, made in make_extensions(tokenizer, texts, options.n, options.phrases, beginning):
        about["extensions"][name] = _facts(made, texts, problems)
        shown = {k: v for k, v in about["extensions"][name].items() if k not in ("problems", "density")}
        print(name, shown, _passed(began), flush=True)
    with tarfile.open(options.out / "extensions.tar.xz", "w:xz", preset=9) as archive:
        archive.add(options.out / "extensions", "extensions")
    sets = forgetting_texts(texts["validation"], max_texts=200, max_chars=1200)
    write_sets(options.out / "forgetting.json", sets)
    for folder in (options.out, options.results):
        files.write_json(folder / "data.json", about)
    size = sum(p.stat().st_size for p in options.out.iterdir() if p.is_file())
    print(f"{options.out}: {size / 1e6:.1f} MB to carry, {_passed(began)}")


def write_pairs(folder: Path, splits: Mapping[str, Sequence[Pair]]) -> None:
    """Write pairs, and the functions of those that models learn from or are judged by."""
    write_gz(
        folder / "packages.jsonl.gz", [{"split": s, **asdict(pair)} for s, some in splits.items() for pair in some]
    )
    rows: list[dict[str, Any]] = []
    for split in ("train", "validation"):
        for found in read_functions(splits[split]):
            rows.append({"split": split, **(asdict(found) if found else {})})
    write_gz(folder / "functions.jsonl.gz", rows)


def write_gz(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a compressed file of lines."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _facts(
    made: Extension, texts: Mapping[str, Sequence[str]], problems: Mapping[str, list[Problem]]
) -> dict[str, Any]:
    """How often the new tokens stand in the splits and in the problems, and which problems hold one."""
    counts = np.array(list(made.count(texts["train"]).values()))
    held = {name: new_token_counts(rows, made.extended, made.V) for name, rows in problems.items()}
    return {
        "tokens": made.N, "chosen_on": made.report.get("chosen_on", "tokenizer pairs"),
        "trained 4 times": int((counts >= 4).sum()), "untrained": int((counts == 0).sum()),
        "shown in training": int(counts.sum()), "shown in validation": sum(made.count(texts["validation"]).values()),
        "kept": {name: len(rows) for name, rows in problems.items()},
        "problems with a new token": {name: sum(new > 0 for new, _ in rows) for name, rows in held.items()},
        "problems": {
            name: [p.task_id for p, (new, _) in zip(problems[name], rows, strict=True) if new]
            for name, rows in held.items()
        },
        "density": {name: [list(pair) for pair in rows] for name, rows in held.items()},
    }  # fmt: skip


def _versions() -> dict[str, str]:
    names = importlib.metadata.packages_distributions()
    wanted = sorted({name for some in PACKAGES.values() for name in some})
    return {name: importlib.metadata.version(names[name][0]) for name in wanted if name in names}


def _passed(began: float) -> str:
    return f"{time.perf_counter() - began:.0f} s"


# --- what the other scripts read ------------------------------------------------------------------------------------


class Data:
    """A folder that `prepare` made."""

    def __init__(self, folder: Path, label: str = LABEL) -> None:
        self.folder, self.label = folder, label
        self.extensions = unpack(folder)
        self.pairs = read_splits(folder / "packages.jsonl.gz")
        self.functions: dict[str, list[Function | None]] = {}
        for row in files.read_jsonl(folder / "functions.jsonl.gz"):
            self.functions.setdefault(row.pop("split"), []).append(Function(**row) if row else None)
        self.own: dict[str, dict[int, str]] = {"train": {}, "validation": {}}
        for row in known_lines(folder / OWN):
            self.own[row["split"]][row["pair"]] = row["body"]
        self.sets = read_sets(folder / "forgetting.json")

    def extension(self, name: str) -> Extension:
        """Load an extension, such as `merges-800`."""
        return load_extension(self.extensions / f"{self.label}-packages-{name}")

    def names(self) -> list[str]:
        """Names of the extensions that are there."""
        beginning = f"{self.label}-packages-"
        return sorted(p.name.removeprefix(beginning) for p in self.extensions.iterdir() if p.name.startswith(beginning))

    def render(self, split: str, kind: str, tokenizer: Any, limit: int | None = None) -> list[Rendered]:
        """Render a split; SystemExit where it asks for what the base model writes and that is not there."""
        own = self.own.get(split, {})
        if kind in ("own", "mixed") and not own:
            raise SystemExit(f"{self.folder / OWN} has no bodies of {split}: let `reproduction.py own` write them")
        return render_kind(self.pairs[split][:limit], self.functions[split][:limit], kind, tokenizer, own)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `prepare`."""
    command.add_argument("--model", required=True, help="tokenizer: name, folder, hub id or GGUF file")
    command.add_argument("--label", default=LABEL, help="name of the model in folders and results")
    command.add_argument("--out", type=Path, required=True)
    command.add_argument(
        "--packages", type=Path, help="a further folder with packages, as pip install --target makes it"
    )
    command.add_argument("--benchmarks", nargs="+", default=list(BENCHMARKS), choices=BENCHMARKS)
    command.add_argument("--n", type=int, nargs="+", default=[100, 400, 800, 1600])
    command.add_argument("--phrases", type=int, default=N, help="tokens by strategy phrases, 0 for none")
