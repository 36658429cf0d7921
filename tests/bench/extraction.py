"""Compare extraction with EvalPlus's (and with DS-1000's official script) and say why each difference is there.

    VOCABX_DATA=shared/data python tests/bench/extraction.py SAMPLES.jsonl.gz --tokenizer MODEL.gguf \
        --evalplus ENVIRONMENT/bin/python --report results/bench/extraction.json

EvalPlus 0.3.1 wants clients of three model services, so it does not belong among the test requirements. Its
`sanitize` needs a few packages only, in an environment of their own:

    python3.11 -m venv ENVIRONMENT
    ENVIRONMENT/bin/pip install --no-deps evalplus==0.3.1
    ENVIRONMENT/bin/pip install tree-sitter tree-sitter-python appdirs tempdir wget tqdm multipledispatch datasets

The report holds numbers, ids and reasons, not the answers.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import re
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from answers import prompt_of
from evaluation.evaluation_parts import humaneval_problem
from evaluation.made_up_replies import made_up_replies

from vocabx_utils.evaluation.answers import extract_answer
from vocabx_utils.evaluation.benchmarks import benchmark_of, load_benchmark
from vocabx_utils.evaluation.prompts import build_prompt
from vocabx_utils.evaluation.statements import defines, parses
from vocabx_utils.files import read_jsonl, write_json
from vocabx_utils.models import load_tokenizer
from vocabx_utils.progress import progress

_CHUNK = 100
_SANITIZE = """
import json, sys
from evalplus.sanitize import sanitize
print(json.dumps([sanitize(text, name) for text, name in json.load(sys.stdin)]))
"""
UNEXPLAINED = "unexplained"


def sanitize(pairs: Sequence[tuple[str, str]], python: str) -> list[str]:
    """Extract by EvalPlus: text of the reply and name of the function."""
    chunks = [pairs[start : start + _CHUNK] for start in range(0, len(pairs), _CHUNK)]

    def run(chunk: Sequence[tuple[str, str]]) -> list[str]:
        command = [python, "-W", "ignore", "-c", _SANITIZE]
        done = subprocess.run(command, input=json.dumps(chunk), capture_output=True, text=True, check=True)
        return list(json.loads(done.stdout.splitlines()[-1]))

    with ThreadPoolExecutor(2) as pool, progress(total=len(pairs), desc="EvalPlus", unit="reply") as bar:
        found = []
        for part in pool.map(run, chunks):
            found += part
            bar.update(len(part))
    return found


def official_snippet(text: str) -> str:
    """Post-process as the official script of DS-1000 does, step by step."""
    text = text.split("</code>")[0]
    text = text.replace("```python", "")
    text = text.split("```")[0]
    text = text.split("\nEND SOLUTION")[0]
    return text.replace("<code>", "")


def statements(code: str) -> list[str]:
    """Return the top-level statements in normal form, none where the code does not parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [ast.unparse(node) for node in ast.parse(code).body] if parses(code) else []


def explain(ours: str, theirs: str, name: str, raw: str) -> str:
    """Say why two programs taken from one reply differ, `""` if they do not."""
    mine, other = statements(ours), statements(theirs)
    if ours.strip() == theirs.strip() or (mine and mine == other):
        return ""
    if not defines(ours, name):
        return (
            "nothing in the reply defines the function: we keep it whole for a person to see"
            if not defines(theirs, name)
            else UNEXPLAINED
        )
    if _glued(ours, raw) and len(other) <= len(mine):
        return "the last line is glued to a fence or to text of a special token: EvalPlus loses it"
    if not defines(theirs, name):
        indented = (
            re.search(rf"^[ \t]+(def|class) +{name}\b", raw, re.M) and f"\n{ours.splitlines()[0]}" not in f"\n{raw}"
        )
        return "EvalPlus finds no code in an indented block" if indented else _why_lost(mine, name)
    if sorted(mine) == sorted(other):
        return "EvalPlus moves imports to the front"
    only_mine, only_other = [s for s in mine if s not in other], [s for s in other if s not in mine]
    if _definition(mine, name) != _definition(other, name):
        return "another part of the reply: EvalPlus takes the longest or the first definition, we the last whole one"
    if not only_other:
        return _why_kept(only_mine) if only_mine else "EvalPlus drops a statement that is there twice"
    if all(s.startswith(("import ", "from ")) for s in only_other):
        extra = _why_kept(only_mine) if only_mine else ""
        return "EvalPlus keeps imports of the example of use" + (f"; {extra}" if extra else "")
    return _why_other(only_other, _kept_by_evalplus(_definition(other, name)))


def _glued(ours: str, raw: str) -> bool:
    last = ours.rstrip().rpartition("\n")[2]
    return bool(last.strip()) and re.search(re.escape(last) + r"[ \t]*[`<]", raw) is not None


def _definition(code: Sequence[str], name: str) -> str:
    return next((s for s in reversed(code) if defines(s, name)), "")


def _node(statement: str) -> ast.stmt:
    return ast.parse(statement).body[0]


def _kept_by_evalplus(definition: str) -> bool:
    node = _node(definition)
    returns = any(isinstance(n, ast.Return) for n in ast.walk(node))
    return isinstance(node, ast.ClassDef | ast.Assign) or (returns and not getattr(node, "decorator_list", None))


def _why_lost(mine: Sequence[str], name: str) -> str:
    """EvalPlus's program does not define the function, ours does."""
    node = _node(_definition(mine, name))
    if getattr(node, "decorator_list", None):
        return "EvalPlus drops decorated functions"
    if isinstance(node, ast.FunctionDef) and not any(isinstance(n, ast.Return) for n in ast.walk(node)):
        return "EvalPlus drops functions without return"
    if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign):
        return "EvalPlus drops definitions inside other statements"
    return "EvalPlus takes a longer part of the reply that does not define the function"


def _why_kept(only_mine: Sequence[str]) -> str:
    """Our program holds statements that EvalPlus's lacks."""
    nodes = [_node(s) for s in only_mine]
    if any(getattr(node, "decorator_list", None) for node in nodes):
        return "EvalPlus drops decorated functions"
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    if any(not any(isinstance(n, ast.Return) for n in ast.walk(node)) for node in functions):
        return "EvalPlus drops functions without return"
    if all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes):
        return "EvalPlus takes a shorter part: a one-line import stands apart"
    if any(isinstance(n, ast.Import | ast.ImportFrom) for node in nodes for n in ast.walk(node)):
        return "EvalPlus drops imports inside `try` or `if`"
    if any(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in nodes):
        return "we keep a text that stands alone before the function"
    if all(isinstance(node, ast.Assign | ast.AnnAssign) for node in nodes):
        return "we keep constants that the function or its test reads; EvalPlus does not see the test"
    if not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in nodes):
        return "we keep set-up statements before what is needed"
    return "we keep what names reach that EvalPlus does not follow"


def _why_other(only_other: Sequence[str], keeps_definition: bool) -> str:
    """EvalPlus's program holds statements that ours lacks."""
    nodes = [_node(s) for s in only_other]
    if not keeps_definition:
        return "EvalPlus keeps no definition (functions without return, decorated ones) and returns the part whole"
    if all(isinstance(node, ast.Assign | ast.AnnAssign | ast.FunctionDef | ast.ClassDef) for node in nodes):
        return "EvalPlus takes names of locals and attributes for globals and keeps what they name"
    return "EvalPlus keeps statements that the function does not reach"


def explain_snippet(ours: str, theirs: str, name: str, raw: str) -> str:
    """Say why a DS-1000 snippet is not the official one."""
    if ours == theirs:
        return ""
    cut = theirs.startswith(ours) and theirs[len(ours) :].startswith(("<", "# SOLUTION END"))
    return "text of a special token, or a stop text, is cut" if cut else UNEXPLAINED


def table(
    ids: Sequence[str],
    ours: Sequence[str],
    theirs: Sequence[str],
    names: Sequence[str],
    raw: Sequence[str],
    why: Callable[[str, str, str, str], str],
) -> dict[str, Any]:
    """Count the replies and list the ids by reason."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for task, mine, other, name, text in zip(ids, ours, theirs, names, raw, strict=True):
        if reason := why(mine, other, name, text):
            reasons[reason].append(task)
    same = len(ids) - sum(map(len, reasons.values()))
    ordered = dict(sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])))
    return {"replies": len(ids), "same": same, "differences": ordered}


def compare_samples(rows: Sequence[Mapping[str, Any]], tokenizer: Any, python: str) -> dict[str, Any]:
    """Compare on the raw replies of a samples file, benchmark by benchmark."""
    tables = {}
    groups: dict[str, list[Any]] = {}
    for row in rows:
        groups.setdefault(benchmark_of(row["task_id"]), []).append(row)
    for name, group in groups.items():
        known = {problem.task_id: problem for problem in load_benchmark(name)}
        problems = [known[row["task_id"]] for row in group]
        prompts = [prompt_of(problem, row, tokenizer) for problem, row in zip(problems, group, strict=True)]
        raw = [row["raw_solution"] for row in group]
        ours = [extract_answer(*parts) for parts in zip(problems, prompts, raw, strict=True)]
        ids, names = [problem.task_id for problem in problems], [problem.entry_point for problem in problems]
        if name == "ds1000":
            tables[name] = table(ids, ours, [official_snippet(text) for text in raw], names, raw, explain_snippet)
            continue
        texts = [prompt.kept + text for prompt, text in zip(prompts, raw, strict=True)]
        tables[name] = table(ids, ours, sanitize(list(zip(texts, names, strict=True)), python), names, raw, explain)
    return tables


def compare_made_up(tokenizer: Any, python: str) -> dict[str, Any]:
    """Compare on the made-up replies of the tests, and count how many of the right answers each way keeps."""
    replies = made_up_replies()
    ours = []
    for reply in replies:
        problem = dataclasses.replace(humaneval_problem(), entry_point=reply.entry_point, test=reply.check)
        ours.append(extract_answer(problem, build_prompt(problem, tokenizer, prefill="none"), reply.text))
    theirs = sanitize([(reply.text, reply.entry_point) for reply in replies], python)
    names = [reply.entry_point for reply in replies]
    found = table([reply.name for reply in replies], ours, theirs, names, [reply.text for reply in replies], explain)
    right = {"ours": ours, "evalplus": theirs}
    passed = {
        who: sum(_holds(code, reply.check) for code, reply in zip(codes, replies, strict=True))
        for who, codes in right.items()
    }
    return {**found, "right": passed}


def _holds(code: str, check: str) -> bool:
    """Execute code of ours (the made-up replies are part of the tests)."""
    space: dict[str, Any] = {"__name__": "answer"}
    try:
        exec(code, space)
        return bool(eval(check, space))
    except (Exception, SystemExit):
        return False


def summary(report: Mapping[str, Any]) -> str:
    """Return the table of `docs/evaluation.md`: replies, the same, and the others by reason."""
    lines = ["| replies | number | the same | difference |", "| --- | ---: | ---: | --- |"]
    for name, found in ((name, found) for name, found in report.items() if isinstance(found, dict)):
        reasons = [f"{len(ids)}: {reason}" for reason, ids in found["differences"].items()]
        lines.append(f"| {name} | {found['replies']} | {found['same']} | {'<br>'.join(reasons) or '–'} |")
    return "\n".join(lines)


def main() -> None:
    """Compare and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path, nargs="?")
    parser.add_argument("--tokenizer", required=True, help="hub id, folder or .gguf of the model that answered")
    parser.add_argument("--evalplus", required=True, metavar="PYTHON", help="interpreter that has evalplus")
    parser.add_argument("--report", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.tokenizer)
    report = {"evalplus": "0.3.1", "made-up": compare_made_up(tokenizer, args.evalplus)}
    if args.samples:
        report |= compare_samples(read_jsonl(args.samples), tokenizer, args.evalplus)
    write_json(args.report, report)
    print(summary(report))


if __name__ == "__main__":
    main()
