"""Instruction pairs: where they come from, how they read, how they are split.

Sources are a hub data set at a pinned revision, a JSON Lines file, the functions of installed packages (docstring
to source), or a source tree. Splits never share a text. A fingerprint names the data in every stage's key.
"""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vocabx_utils.files import hash_bytes, iterate_jsonl
from vocabx_utils.paths import data_dir, user_path
from vocabx_utils.source_tree import CorpusError, read_source_tree
from vocabx_utils.texts import half_character

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUICK_PACKAGES = ("numpy", "pandas", "scipy", "matplotlib", "seaborn", "sklearn")
Template = Literal["thesis", "chat"]


@dataclass(frozen=True)
class Pair:
    """One instruction pair."""

    query: str  # what is asked
    answer: str  # what is answered, code fenced with three backticks
    lang: str = "python"  # language of the code
    source: str = ""  # where it comes from


# --- pairs from the functions of installed packages ----------------------------------------------------------


def pairs_from_packages(packages: Sequence[str] = QUICK_PACKAGES, *, max_chars: int = 2000) -> list[Pair]:
    """Make docstring-to-function pairs from the source of installed packages.

    The query is the function's name and the first paragraph of its docstring, the answer its source without the
    docstring. Tests and what only some Python versions bring are left out, and functions shorter than three lines or
    longer than `max_chars` characters. CorpusError where a package is not installed, or none gives a pair.
    """
    pairs: list[Pair] = []
    for name in packages:
        root = _package_root(name)
        for path in sorted(root.rglob("*.py")):
            if _LEFT_OUT.isdisjoint(path.relative_to(root).parts):
                pairs.extend(_file_pairs(path, f"{name}/{path.relative_to(root).as_posix()}", max_chars))
    pairs = _unique(pairs)
    if not pairs:
        raise CorpusError(f"No documented function found in {', '.join(packages)}.")
    return pairs


def _package_root(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise CorpusError(
            f"Package {name!r} is not installed here (or is a single module). Install it or leave it out."
        )
    return Path(next(iter(spec.submodule_search_locations)))


# numpy ships `distutils` for Python 3.11 only: with it the same lock would give another corpus on another Python
_LEFT_OUT = frozenset({"tests", "testing", "_vendor", "externals", "distutils", "setup.py"})


def _file_pairs(path: Path, source: str, max_chars: int) -> Iterator[Pair]:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        statements = walk_statements(ast.parse(text))
    except SyntaxError:  # templates and Python 2 leftovers exist in real packages
        return
    lines = text.splitlines(keepends=True)
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (doc := ast.get_docstring(node)):
            code = _source_without_docstring(node, lines)
            if code.count("\n") >= 3 and len(code) <= max_chars:
                paragraph = " ".join(doc.split("\n\n")[0].split())
                query = f"Write the Python function `{node.name}`. {paragraph}"
                yield Pair(query, f"```python\n{code}```", "python", source)


def walk_statements(tree: ast.Module) -> list[ast.AST]:
    """Return the module and its statements in the order of `ast.walk`, without the expressions: most of the nodes."""
    found: list[ast.AST] = [tree]
    for node in found:  # which grows
        found += [s for name in ("body", "handlers", "orelse", "finalbody", "cases") for s in getattr(node, name, ())]
    return found


def _source_without_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> str:
    first = node.body[0]
    kept = lines[node.lineno - 1 : first.lineno - 1] + lines[(first.end_lineno or first.lineno) : node.end_lineno]
    return textwrap.dedent("".join(kept)).rstrip() + "\n"


# --- pairs from files, the hub and source trees ----------------------------------------------------------------


def pairs_from_jsonl(path: str | Path, limit: int | None = None) -> list[Pair]:
    """Read pairs from JSON Lines (`.jsonl` or `.jsonl.gz`) with `query` and `answer`, `lang` and `source` optional.

    A limit keeps pairs that are drawn by a hash of each. CorpusError for a file that is not there, has no row, is
    not UTF-8 or a damaged archive, and for a line (it is named) that is not JSON, lacks a field or holds text that no
    tokenizer can take.
    """
    path = user_path(path)
    if not path.is_file():
        raise CorpusError(f"No file {path}.")
    pairs = [_row_pair(row, where) for where, row in read_rows(path)]
    if not pairs:
        raise CorpusError(f"{path} holds no pair. Expected one JSON object with 'query' and 'answer' a line.")
    return _draw(pairs, limit)


def read_rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Read file and line, in words, and row of JSON Lines that others wrote; CorpusError where one cannot be read."""
    try:
        return [(f"{path.name}, line {number}", row) for number, row in iterate_jsonl(path, allow_torn=False)]
    except ValueError as error:
        raise CorpusError(str(error)) from error


def _row_pair(row: Mapping[str, Any], where: str) -> Pair:
    query, answer = (text_field(row, name, where) for name in ("query", "answer"))
    return Pair(query, answer, label_field(row, "lang", where, "python"), label_field(row, "source", where, where))


def text_field(row: Mapping[str, Any], name: str, where: str) -> str:
    """Return a field of a row that must hold text.

    CorpusError where it is missing or empty, or is nothing that a tokenizer can take; `where` names the row.
    """
    if not isinstance(row.get(name), str) or not row[name].strip():
        raise CorpusError(f"{where}: {name!r} is missing, empty or not text.")
    return label_field(row, name, where)


def label_field(row: Mapping[str, Any], name: str, where: str, default: str = "") -> str:
    """Return what a field of a row says of it, as text that a tokenizer can take (else CorpusError), or a default."""
    value = str(row.get(name) or default)
    if bad := half_character(value):
        raise CorpusError(f"{where}: {name!r} holds {bad}. Mend or remove this row.")
    return value


def pairs_from_hub(name: str, revision: str | None = None) -> list[Pair]:
    """Load the training pairs of a hub data set at a pinned revision (fields `query` and `answer`, `lang` optional).

    CorpusError where it cannot be reached or has other fields.
    """
    from datasets import load_dataset

    try:
        rows = load_dataset(name, split="train", revision=revision)
    except Exception as error:  # hub, network and data set errors have no common base class
        raise CorpusError(
            f"Could not load data set {name!r} (revision {revision}): {type(error).__name__}: {error}. "
            "Give a JSON Lines file instead, or set `corpus` to 'packages'."
        ) from error
    return [_row_pair(row, f"{name}, row {i}") for i, row in enumerate(rows)]


def pairs_from_tree(folder: str | Path, glob: str = "*.h", *, max_chars: int = 1500) -> list[Pair]:
    """Cut the files of a source tree at line ends into pieces of at most `max_chars` characters, each one a pair.

    CorpusError where no matching file can be read.
    """
    pairs = []
    for document in read_source_tree(user_path(folder), glob).documents:
        lang = {".h": "c", ".c": "c", ".py": "python", ".rs": "rust"}.get(Path(document.path).suffix, "")
        pieces = [p.strip("\n") for p in cut_at_lines(document.text, max_chars) if p.strip()]
        for number, piece in enumerate(pieces, 1):
            query = f"Write part {number} of {len(pieces)} of the file `{document.path}`."
            pairs.append(Pair(query, f"```{lang}\n{piece}\n```", lang, document.path))
    return _unique(pairs)


def cut_at_lines(text: str, max_chars: int) -> list[str]:
    """Cut a text at line ends into pieces of at most `max_chars` characters; a longer line is a piece by itself.

    >>> cut_at_lines("a\\nbc\\nd", 5)
    ['a\\nbc\\n', 'd']
    """
    pieces, current = [], ""
    for line in text.splitlines(keepends=True):
        if current and len(current) + len(line) > max_chars:
            pieces.append(current)
            current = ""
        current += line
    return [*pieces, current] if current else pieces


# --- how a pair reads --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rendered:
    """A pair as one text."""

    text: str  # the whole, with begin and end tokens spelled out
    answer_start: int  # character offset of the answer


def prompt(
    query: str,
    template: Template = "thesis",
    tokenizer: PreTrainedTokenizerBase | None = None,
    prefill: str = "",
) -> str:
    """Render a query up to where the answer begins.

    Args:
        template: `thesis` (its section Experimental Setup and Formatting) or `chat`, the tokenizer's own template;
            CorpusError where it has none.
        tokenizer: gives the begin token and the chat template; may be left out for `thesis`.
        prefill: start of the answer that is given, such as a fence and the signature.
    """
    if template == "chat":
        if tokenizer is None or not tokenizer.chat_template:
            raise CorpusError("template 'chat' needs a tokenizer with a chat template; use 'thesis' otherwise.")
        message = [{"role": "user", "content": query}]
        return str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)) + prefill
    if template != "thesis":
        raise CorpusError(f"template is {template!r}; expected 'thesis' or 'chat'.")
    begin = (tokenizer.bos_token or "") if tokenizer is not None else ""
    return f"{begin}### Instruction:\n{query}\n\n### Answer:\n{prefill}"


def render(
    pair: Pair,
    template: Template = "thesis",
    tokenizer: PreTrainedTokenizerBase | None = None,
    prefill: str = "",
) -> Rendered:
    """Render a pair for training: the same `prompt` as in evaluation, the rest of the answer, the end token.

    An answer that does not begin with `prefill` raises CorpusError.
    """
    if not pair.answer.startswith(prefill):
        raise CorpusError(f"the answer begins with {pair.answer[:40]!r}, not with the prefill {prefill!r}.")
    start = prompt(pair.query, template, tokenizer, prefill)
    end = (tokenizer.eos_token or "") if tokenizer is not None else ""
    return Rendered(start + pair.answer[len(prefill) :] + end, len(start))


# --- splits and fingerprints -------------------------------------------------------------------------------


def split_pairs(pairs: Sequence[Pair], sizes: Mapping[str, int], seed: int = 0) -> dict[str, list[Pair]]:
    """Draw disjoint splits; pairs with the same answer count as one, so that no split repeats another.

    Pairs are ranked by a hash of each and of the seed. One pair more or less in the corpus (another version of a
    package) changes at most one pick of each split, where a shuffle of positions would change them all. Splits are
    drawn in the order of `sizes`. CorpusError where there are fewer different pairs than asked for.
    """
    different = _unique(pairs)
    needed = sum(sizes.values())
    if needed > len(different):
        raise CorpusError(
            f"{dict(sizes)} needs {needed} pairs; the corpus has {len(different)} different ones of {len(pairs)}. "
            "Ask for fewer, or add packages or files."
        )
    drawn = iter(sorted(different, key=lambda pair: _rank(pair, seed)))
    return {name: list(islice(drawn, size)) for name, size in sizes.items()}


def shared_sizes(pairs: Sequence[Pair], sizes: Mapping[str, int], least: Mapping[str, int]) -> dict[str, int]:
    """Return split sizes as they are if a corpus has enough different pairs, else all of it in the same ratios.

    CorpusError where it is so small that a split would hold fewer than its least number, with which it makes sense.
    """
    available, needed = len(_unique(pairs)), sum(sizes.values())
    if needed <= available:
        return dict(sizes)
    shared = {name: max(size * available // needed, min(size, least.get(name, 1))) for name, size in sizes.items()}
    # a split that was lifted to its least number takes the difference from the largest one
    largest = max(shared, key=lambda name: shared[name])
    shared[largest] -= max(sum(shared.values()) - available, 0)
    if shared[largest] < min(sizes[largest], least.get(largest, 1)):
        raise CorpusError(
            f"The corpus has {available} different texts; the splits need at least {dict(least)}, "
            f"{sum(least.values())} together. Add files, or ask for smaller splits (tokenizer_pairs, train_pairs, "
            "validation_pairs)."
        )
    return shared


def fingerprint(texts: Iterable[str]) -> str:
    """Return the digest of texts in order (16 hex digits)."""
    encoded = (text.encode("utf-8", "surrogatepass") for text in texts)
    return hash_bytes(len(data).to_bytes(8, "little") + data for data in encoded)[:16]


def data_path(name: str) -> Path | None:
    """Return the file `name` below `$VOCABX_DATA`, or None when that is not set or has no such file."""
    folder = data_dir()
    return folder / name if folder and (folder / name).exists() else None


def _unique(pairs: Iterable[Pair]) -> list[Pair]:
    kept: dict[str, Pair] = {}
    for pair in pairs:
        kept.setdefault(_body(pair), pair)
    return list(kept.values())


def _body(pair: Pair) -> str:
    """The answer without its layout: pairs that agree here count as one."""
    return " ".join(pair.answer.split())


def _draw(pairs: Sequence[Pair], limit: int | None) -> list[Pair]:
    """Draw `limit` pairs in their own order; with one pair more or less in the corpus one pick changes."""
    if limit is not None and limit < 1:
        raise CorpusError(f"limit is {limit}; expected 1 or more, or None.")
    if limit is None or limit >= len(pairs):
        return list(pairs)
    chosen = sorted(sorted(range(len(pairs)), key=lambda i: _rank(pairs[i], 0))[:limit])
    return [pairs[i] for i in chosen]


def _rank(pair: Pair, seed: int) -> str:
    """Place of a pair in a draw: a hash of what it says, so that it does not depend on which others there are."""
    return hash_bytes([f"{seed}\0{pair.query}\0{_body(pair)}".encode()])
