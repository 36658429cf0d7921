"""The texts of an adaptation: read from a folder or from JSON Lines, and split by file into three parts.

What one file says, its neighbour often repeats; text of the same file on both sides of a split would flatter. So files
are the units: new tokens and rows are learned on most of them, rates are chosen on some, and the report measures on
others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from transformers import PreTrainedTokenizerFast

from vocabx_utils import corpus
from vocabx_utils.corpus import Pair, Rendered
from vocabx_utils.paths import user_path
from vocabx_utils.source_tree import CorpusError, Document, hold_out, read_source_tree

# Names of the two sides of a pair, in the order in which they are looked for.
QUESTIONS = ("query", "instruction", "prompt", "question")
ANSWERS = ("answer", "output", "response", "completion")
INPUT = "input"  # of Alpaca: what the question is about, in a field of its own; often empty
_LONGEST = 20_000_000  # bytes of one file; more is data and not text
_LEAST = 200  # bytes of each part


@dataclass(frozen=True)
class Text:
    """One text."""

    name: str  # the file that it belongs to; texts of one name stay together
    kind: str  # suffix of the file, or the language that its row names
    plain: str  # what tokens are chosen and measured on
    rendered: Rendered | None = None  # a pair as the model reads it; None for a text that is no pair

    @property
    def read(self) -> str:
        """What the model learns from."""
        return self.plain if self.rendered is None else self.rendered.text


@dataclass(frozen=True)
class Split:
    """The three parts, no file in two of them."""

    train: tuple[Text, ...]  # new tokens are chosen and learned here
    validation: tuple[Text, ...]  # learning rates are judged here
    held_out: tuple[Text, ...]  # nothing is chosen here; the report measures on it

    def digest(self) -> str:
        """Return what stands for all texts in keys (16 hex digits)."""
        parts = (self.train, self.validation, self.held_out)
        return corpus.fingerprint(f"{number}\0{t.name}\0{t.read}" for number, part in enumerate(parts) for t in part)

    def sizes(self) -> dict[str, dict[str, int]]:
        """Return files, texts and UTF-8 bytes of each part."""
        return {
            part: {
                "files": len({text.name for text in texts}),
                "texts": len(texts),
                "bytes": sum(len(text.plain.encode()) for text in texts),
            }
            for part, texts in vars(self).items()
        }


def read_texts(
    source: str | Path,
    tokenizer: PreTrainedTokenizerFast,
    *,
    glob: str = "*",
    all_files: bool = False,
    tell: Callable[[str], None] = print,
) -> list[Text]:
    """Read the files of a folder, or the rows of a JSON Lines file (`.jsonl`, `.jsonl.gz`).

    A row has a field `text`, or a question and an answer (see `QUESTIONS` and `ANSWERS`), and may name its file in
    `source` or `path` and its language in `lang`. What stands in `input` is put behind the question, as
    in Alpaca. Pairs are rendered with the tokenizer's chat template where it has one, otherwise with the thesis's.
    Copies of a file or row are left out: they would stand in two parts of the split.
    CorpusError where there is no such place, nothing in it can be read, or a row lacks what is needed (it is named).
    """
    place = user_path(source)
    if place.is_dir():
        tree = read_source_tree(place, glob, all_files=all_files, max_bytes=_LONGEST)
        if tree.skipped:
            tell(f"left out {len(tree.skipped)} files and folders, the first: {': '.join(tree.skipped[0])}")
        return [Text(d.path, PurePath(d.path).suffix or "(none)", d.text) for d in tree.documents]
    if not place.exists():
        raise CorpusError(f"{source} does not exist. Give a folder of texts, or a file of JSON Lines.")
    if not place.name.endswith((".jsonl", ".jsonl.gz")):
        raise CorpusError(f"{source} is one file. Give a folder of text files, or a .jsonl file with a text a line.")
    found = [_row_text(row, where, tokenizer) for where, row in corpus.read_rows(place)]
    if not found:
        raise CorpusError(f"{source} holds no row. Expected one JSON object a line, with 'text' or a pair.")
    first: dict[str, Text] = {}
    for text in found:
        first.setdefault(text.plain, text)
    if copies := len(found) - len(first):
        tell(f"left out {copies} rows that repeat another one")
    return list(first.values())


def _row_text(row: Mapping[str, Any], where: str, tokenizer: PreTrainedTokenizerFast) -> Text:
    name = corpus.label_field(row, "source", where) or corpus.label_field(row, "path", where, where)
    kind = corpus.label_field(row, "lang", where)
    if "text" in row:
        return Text(name, kind or "text", corpus.text_field(row, "text", where))
    question, answer = (next((n for n in names if n in row), None) for names in (QUESTIONS, ANSWERS))
    if question is None or answer is None:
        raise CorpusError(
            f"{where}: the row has {', '.join(row) or 'no field'}; expected 'text', or one of "
            f"{', '.join(QUESTIONS)} with one of {', '.join(ANSWERS)}."
        )
    asked, said = (corpus.text_field(row, field, where) for field in (question, answer))
    given = corpus.text_field(row, INPUT, where) if row.get(INPUT) else ""
    query = f"{asked}\n\n### Input:\n{given}" if given else asked
    rendered = corpus.render(Pair(query, said), "chat" if tokenizer.chat_template else "thesis", tokenizer)
    plain = "\n".join(part for part in (asked, given, said) if part)  # no token is chosen for the heading
    return Text(name, kind or "pairs", plain, rendered)


def split_texts(texts: Sequence[Text], held_out: float, validation: float) -> Split:
    """Split texts by file, drawn by a hash of their names; both shares are of all bytes.

    CorpusError for fewer than three files, or hardly any text.
    """
    together: dict[str, list[str]] = {}
    for text in texts:
        together.setdefault(text.name, []).append(text.plain)
    if len(together) < 3:
        raise CorpusError(
            f"The texts are of {len(together)} file{'s' if len(together) > 1 else ''}; expected three or more, because "
            "tokens are learned, rates chosen and gains measured on different files. Cut a long file into several "
            "(`split -C 50k FILE part-`), or give more."
        )
    files = [Document(name, "".join(parts)) for name, parts in together.items()]
    rest, measured = hold_out(files, held_out)
    learned, judged = hold_out(rest, validation / (1 - held_out))
    sizes = [sum(file.n_bytes for file in part) for part in (learned, judged, measured)]
    if min(sizes) < _LEAST:
        raise CorpusError(
            f"The texts are too short: to learn from, to judge by and to measure on there are {sizes} bytes; expected "
            f"{_LEAST} or more of each. Give more text."
        )
    parts = ({file.path for file in part} for part in (learned, judged, measured))
    return Split(*(tuple(text for text in texts if text.name in names) for names in parts))


def texts_by_kind(texts: Sequence[Text]) -> dict[str, list[str]]:
    """Group plain texts by their kind, for `vocabulary.audit`."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text.kind, []).append(text.plain)
    return dict(sorted(groups.items()))


def spread(texts: Sequence[Text], max_chars: int, max_bytes: int) -> list[tuple[str, str]]:
    """Cut texts as the model reads them at line ends, and take pieces of all files in turn up to a number of bytes.

    Each is (name of the file, piece), in the order of the files; there is one at least.
    """
    pieces: dict[str, list[str]] = {}
    for text in texts:
        found = [piece for piece in corpus.cut_at_lines(text.read, max_chars) if piece.strip()]
        pieces.setdefault(text.name, []).extend(found)
    turns = max(map(len, pieces.values()), default=0)
    order = [(turn, name) for turn in range(turns) for name in pieces if turn < len(pieces[name])]
    taken: dict[str, int] = {}
    size = 0
    for turn, name in order:
        size += len(pieces[name][turn].encode())
        if taken and size > max_bytes:
            break
        taken[name] = turn + 1
    return [(name, piece) for name, count in taken.items() for piece in pieces[name][:count]]
