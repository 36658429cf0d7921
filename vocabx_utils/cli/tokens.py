"""`vocabx tokens`: propose new tokens for a source tree, and audit an extended tokenizer."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vocabx_utils.cli import UserPath, all_files_option, glob_option
from vocabx_utils.config import TokenizerConfig
from vocabx_utils.corpus import pairs_from_jsonl
from vocabx_utils.files import write_table
from vocabx_utils.folders import atomic_folder
from vocabx_utils.runs import existing_run
from vocabx_utils.source_tree import Document, SourceTree, hold_out, read_source_tree

if TYPE_CHECKING:
    import pandas as pd

    from vocabx_utils.vocabulary.audit import Audit
    from vocabx_utils.vocabulary.options import Strategy
    from vocabx_utils.vocabulary.tokens import Extension

_IN_NOTEBOOK = {  # options of `propose`, and what notebook 01 calls them
    "min_count": "min_count", "max_bytes": "max_token_bytes", "keep_whitespace": "keep_whitespace",
    "max_phrase_bytes": "max_phrase_bytes", "line_breaks": "line_breaks", "mix_words": "mix_words",
    "phrase_form": "phrase_form", "max_cut": "max_cut",
}  # fmt: skip


@click.group()
def tokens() -> None:
    """Propose new tokens, and audit an extended tokenizer."""


@tokens.command()
@click.option("--from", "folder", required=True, type=UserPath(), help="Source tree to read.")
@glob_option
@all_files_option
@click.option("--n", default=800, show_default=True, help="New tokens wanted; steps towards them come on top.")
@click.option("--model", default="smollm2-135m", show_default=True, help="Whose tokenizer: name, hub id or folder.")
@click.option("--strategy", default="merges", show_default=True, type=click.Choice(["merges", "added", "phrases"]))
@click.option("--min-count", default=4, show_default=True, help="Fewest occurrences of a token.")
@click.option("--min-files", default=2, show_default=True, help="Fewest files that a token occurs in.")
@click.option("--max-bytes", default=32, show_default=True, help="Longest token inside a word, in bytes.")
@click.option("--max-phrase-bytes", default=64, show_default=True, help="Longest phrase, in bytes (phrases).")
@click.option("--line-breaks/--no-line-breaks", default=True, show_default=True, help="Line breaks inside phrases.")
@click.option("--mix-words/--no-mix-words", default=True, show_default=True, help="Let words compete with phrases.")
@click.option(
    "--phrase-form",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "patterns", "literal"]),
    help="Let phrases through the pre-tokenizer where it is known, or make added tokens of them.",
)
@click.option("--max-cut", default=0.5, show_default=True, help="Share of a phrase's places that may cut old tokens.")
@click.option("--across-digits", is_flag=True, help="Let merges join digits.")
@click.option("--keep-whitespace", is_flag=True, help="Propose tokens of pure whitespace too.")
@click.option("--exclude", multiple=True, metavar="TOKEN", help="Leave a token out; can be given again and again.")
@click.option("--held-out", default=0.2, show_default=True, help="Share of the bytes kept to measure the gain on.")
@click.option("--out", type=UserPath(), help="Where to write the extension. Default: extension-<folder>.")
def propose(
    folder: Path,
    glob: str,
    all_files: bool,
    n: int,
    model: str,
    strategy: Strategy,
    held_out: float,
    out: Path | None,
    **options: Any,
) -> None:
    """Read a source tree, propose tokens, print the gain, write the extended tokenizer and tables of all of it."""
    from vocabx_utils.models import load_tokenizer
    from vocabx_utils.vocabulary.audit import audit_extension, texts_by_type
    from vocabx_utils.vocabulary.extend import add_tokens
    from vocabx_utils.vocabulary.options import TokenOptions
    from vocabx_utils.vocabulary.proposals import FewerTokensWarning, select_tokens

    if not 0 <= held_out < 1:
        raise click.BadParameter(f"{held_out}; expected 0 or more and below 1.", param_hint="--held-out")
    target = out or Path(f"extension-{folder.resolve().name}")
    with atomic_folder(target) as scratch:
        tree = read_source_tree(folder, glob, all_files=all_files)
        tokenizer = load_tokenizer(model)
        _print_tree(tree)
        chosen_on, measured_on = hold_out(tree.documents, held_out)
        _print_held_out(chosen_on, measured_on)
        options |= {"exclude": frozenset(options["exclude"]), "count_steps": False}
        options["min_files"] = min(options["min_files"], len(chosen_on))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FewerTokensWarning)
            texts = [document.text for document in chosen_on]
            proposals = select_tokens(texts, tokenizer, n, strategy, TokenOptions(**options))
        for warning in caught:
            if issubclass(warning.category, FewerTokensWarning):
                click.echo(str(warning.message))
            else:  # not this command's to tell: it goes where it would have gone
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        extension = add_tokens(tokenizer, proposals, strategy, phrase_form=options["phrase_form"])
        _print_tokens(extension)
        audit = audit_extension(extension, texts_by_type(measured_on or chosen_on))
        click.echo(f"\nGain, measured on the {'held-out files' if measured_on else 'files they were chosen on'}:")
        _print_audit(audit)
        if not audit.passed:
            raise click.ClickException(
                "Nothing was written: some text does not come back as under the original tokenizer, or a token "
                "is one that no text produces (see above). Leave such tokens out with --exclude"
                + ("." if strategy == "merges" else ", or use --strategy merges.")
            )
        extension.save(scratch)
        write_table(scratch / "tokens.csv", extension.table())
        write_table(scratch / "files.csv", _files_table(tree, measured_on))
    chosen: dict[str, Any] = {
        "model": model,
        "corpus_source": "tree",
        "corpus_path": str(folder.resolve()),
        "corpus_glob": glob,
    }
    chosen |= {"strategy": strategy, "n_tokens": sum(t.wanted for t in extension.tokens)}
    _print_next_steps(target, folder, chosen, {**options, "all_files": all_files})


@tokens.command()
@click.argument("extension_folder", required=False, type=UserPath())
@click.option("--run-name", help="Audit the extension of this run instead of a folder.")
@click.option("--from", "folder", type=UserPath(), help="Source tree to measure the gain on.")
@glob_option
@all_files_option
@click.option("--check-text", type=UserPath(exists=True, dir_okay=False), help="File with a converter's check text.")
@click.option("--words", default=20, show_default=True, help="How many changed words to list.")
def audit(
    extension_folder: Path | None,
    run_name: str | None,
    folder: Path | None,
    check_text: Path | None,
    words: int,
    **chosen: Any,
) -> None:
    """Audit an extension: dead tokens, changed words, round trips, gains. Exit status 1 when one is broken."""
    from vocabx_utils.vocabulary.audit import CHECK_TEXT, audit_extension, texts_by_type
    from vocabx_utils.vocabulary.tokens import load_extension

    where, texts, training = _audit_inputs(extension_folder, run_name)
    extension = load_extension(where)
    if folder is not None:
        tree = read_source_tree(folder, **chosen)
        _print_tree(tree)
        texts = texts_by_type(tree.documents)
    text = check_text.read_text(encoding="utf-8") if check_text else CHECK_TEXT
    result = audit_extension(extension, texts, training, check_text=text)
    click.echo(f"{extension.N} new tokens, strategy {extension.strategy}, ids {extension.V} and up")
    _print_audit(result)
    if result.missing is None:
        click.echo("Gains, and which tokens occur at all: not measured. Give a source tree with --from.")
    for row in result.changed_words.head(words).itertuples():
        click.echo(f"  {row.word!r}: {row.before}  ->  {row.after}")
    if not result.passed:
        raise SystemExit(1)


def _audit_inputs(
    extension_folder: Path | None, run_name: str | None
) -> tuple[Path, dict[str, list[str]], list[str] | None]:
    from vocabx_utils.vocabulary.splits import plain_texts

    if (extension_folder is None) == (run_name is None):
        raise click.UsageError("Give either an extension folder or --run-name.")
    if extension_folder is not None:
        return extension_folder, {}, None
    run = existing_run(str(run_name))
    train, validation = (
        plain_texts(pairs_from_jsonl(run.require("01", f"splits/{name}.jsonl"))) for name in ("train", "validation")
    )
    return run.require("01", "extension"), {"validation": validation}, train


def _files_table(tree: SourceTree, measured_on: list[Document]) -> pd.DataFrame:
    """One row for each file: how it was read and what for, or why it was left out."""
    import pandas as pd

    measured = {d.path for d in measured_on}
    rows: list[tuple[str, str, int | None, str | None]] = [
        (d.path, "measured on" if d.path in measured else "chosen on", d.n_bytes, d.encoding) for d in tree.documents
    ]
    rows += [(path, f"left out: {reason}", None, None) for path, reason in tree.skipped]
    return pd.DataFrame(rows, columns=["path", "use", "bytes", "encoding"]).astype({"bytes": "Int64"})


def _print_tree(tree: SourceTree) -> None:
    size = sum(d.n_bytes for d in tree.documents) / 1e6
    click.echo(f"Read {len(tree.documents)} files, {size:.2f} MB.")
    if tree.long_lines:
        click.echo(f"Dropped {tree.long_lines} lines that are too long to be written by hand.")
    _print_groups("Left out", tree.skipped, 3)
    _print_groups("Read as", tree.recoded, 20)


def _print_groups(title: str, found: Iterable[tuple[str, str]], limit: int) -> None:
    """Print paths by what is said of them, a few of each."""
    groups: dict[str, list[str]] = {}
    for path, what in found:
        groups.setdefault(what, []).append(path)
    for what, paths in groups.items():
        more = f" and {len(paths) - limit} more" if len(paths) > limit else ""
        click.echo(f"{title}: {what}: {', '.join(paths[:limit])}{more}")


def _print_held_out(chosen_on: list[Document], measured_on: list[Document]) -> None:
    if not measured_on:
        click.echo("No file was held out, so the gain is measured on what the tokens are chosen on.")
        return
    chosen, measured = (sum(d.n_bytes for d in part) for part in (chosen_on, measured_on))
    share = 100 * measured / (chosen + measured)
    click.echo(
        f"Tokens are chosen on {len(chosen_on)} files; {len(measured_on)} are held out to measure the gain on, "
        f"{share:.1f} % of the bytes."
    )


def _print_tokens(extension: Extension, limit: int = 40) -> None:
    steps = sum(not t.wanted for t in extension.tokens)
    towards = f" and {steps} steps towards them" if steps else ""
    table = extension.table().head(limit)
    click.echo(
        f"\n{extension.N - steps} new tokens{towards} ({extension.strategy}), ids {extension.V} to "
        f"{extension.V + extension.N - 1}; the first {len(table)}:"
    )
    for row in table.itertuples():
        often = f"{row.count:>7} times" if row.wanted else f"{'step':>13}"
        click.echo(f"  {row.id}  {row.text!r:34} {often}  {row.subtokens}")
    for note in extension.report["notes"]:
        click.echo(f"Note: {note}")


def _print_audit(audit: Audit) -> None:
    import pandas as pd

    if len(audit.by_type):
        click.echo(audit.by_type.to_string(index=False, float_format=lambda x: f"{x:.4g}"))
    for row in audit.table().to_dict("records"):
        of = "" if pd.isna(row["of"]) else f" of {row['of']}"
        click.echo(f"{row['finding']}: {row['count']}{of}  {row['examples']}".rstrip())


def _print_next_steps(target: Path, folder: Path, chosen: dict[str, Any], options: dict[str, Any]) -> None:
    where = shlex.quote(str(target))
    defaults = {field.name: field.default for field in fields(TokenizerConfig)}
    named = {_IN_NOTEBOOK[name]: value for name, value in options.items() if name in _IN_NOTEBOOK}
    parameters = chosen | {name: value for name, value in named.items() if value != defaults[name]}
    words = " ".join(f"-p {name} {shlex.quote(str(value))}" for name, value in parameters.items())
    run_name = re.sub("[^A-Za-z0-9._-]+", "-", folder.resolve().name).lstrip("._-") or "tree"
    without = [f"--{name.replace('_', '-')}" for name in ("exclude", "across_digits", "all_files") if options[name]]
    click.echo(
        f"\nWritten to {where}: original/ and extended/ (plain Hugging Face folders), tokens.json, tokens.csv and "
        "files.csv.\nNext:"
        f"\n  Read tokens.csv. To drop a token, run this again with --exclude TOKEN and another --out."
        f"\n  Measure the gain on other text: vocabx tokens audit {where} --from FOLDER"
        f"\n  A model knows nothing of the new tokens until their rows are trained. To see that done on this tree:"
        f"\n    vocabx run --run-name {run_name} {words}"
        "\n  Notebook 01 chooses by itself, on pieces of the files that it draws and without "
        f"{' and '.join(['--min-files', *without])}, so its tokens may differ."
    )
