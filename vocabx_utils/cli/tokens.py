"""`vocabx tokens`: propose new tokens for a source tree, and audit an extended tokenizer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vocabx_utils.corpus import SourceTree
    from vocabx_utils.vocabulary.audit import Audit
    from vocabx_utils.vocabulary.tokens import Extension


@click.group()
def tokens() -> None:
    """Propose new tokens, and audit an extended tokenizer."""


@tokens.command()
@click.option("--from", "folder", required=True, type=click.Path(path_type=Path), help="Source tree to read.")
@click.option("--glob", default="*", show_default=True, help="File name pattern; several separated by commas.")
@click.option("--n", default=800, show_default=True, help="New tokens wanted.")
@click.option("--model", default="smollm2-135m", show_default=True, help="Whose tokenizer: name, hub id or folder.")
@click.option("--strategy", default="merges", show_default=True, type=click.Choice(["merges", "added"]))
@click.option("--min-count", default=4, show_default=True, help="Fewest occurrences of a token.")
@click.option("--max-bytes", default=32, show_default=True, help="Longest token, in bytes.")
@click.option("--across-digits", is_flag=True, help="Let merges join digits.")
@click.option("--keep-whitespace", is_flag=True, help="Propose tokens of pure whitespace too.")
@click.option("--held-out", default=0.2, show_default=True, help="Share of files kept to measure the gain on.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where to write the extension. Default: extension-<folder>."
)
def propose(
    folder: Path,
    glob: str,
    n: int,
    model: str,
    strategy: str,
    min_count: int,
    max_bytes: int,
    across_digits: bool,
    keep_whitespace: bool,
    held_out: float,
    out: Path | None,
) -> None:
    """Read a source tree, propose tokens, print the gain, write the extended tokenizer."""
    from vocabx_utils.corpus import read_source_tree
    from vocabx_utils.models import load_tokenizer
    from vocabx_utils.vocabulary.audit import audit_extension, texts_by_type
    from vocabx_utils.vocabulary.tokens import FewerTokensWarning, extend_tokenizer, select_tokens

    if not 0 <= held_out < 1:
        raise click.BadParameter(f"{held_out}; expected 0 or more and below 1.", param_hint="--held-out")
    target = out or Path(f"extension-{folder.resolve().name}")
    if target.exists() and any(target.iterdir()):
        raise click.ClickException(f"{target} exists and is not empty. Give another folder with --out.")
    try:
        tree = read_source_tree(folder, glob)
        tokenizer = load_tokenizer(model)
        _print_tree(tree)
        chosen_on, measured_on = _held_out(tree, held_out)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FewerTokensWarning)
            proposals = select_tokens(
                (d.text for d in chosen_on.documents),
                tokenizer,
                n,
                strategy=strategy,  # type: ignore[arg-type]
                min_count=min_count,
                max_bytes=max_bytes,
                across_digits=across_digits,
                keep_whitespace=keep_whitespace,
            )
        for warning in caught:
            if issubclass(warning.category, FewerTokensWarning):
                click.echo(str(warning.message))
        extension = extend_tokenizer(tokenizer, proposals, strategy=strategy)  # type: ignore[arg-type]
        audit = audit_extension(extension, texts_by_type(measured_on.documents), chosen_on.texts)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    _print_tokens(extension)
    unseen = "held-out files" if measured_on is not chosen_on else "the same files (too few to hold any out)"
    click.echo(f"\nGain, measured on {unseen}:")
    _print_audit(audit)
    extension.save(target)
    click.echo(f"\nWritten: {target}/original, {target}/extended (plain Hugging Face folders), {target}/tokens.json")


@tokens.command()
@click.argument("extension_folder", required=False, type=click.Path(path_type=Path))
@click.option("--run-name", help="Audit the extension of this run instead of a folder.")
@click.option("--from", "folder", type=click.Path(path_type=Path), help="Source tree to measure the gain on.")
@click.option("--glob", default="*", show_default=True, help="File name pattern; several separated by commas.")
@click.option("--check-text", type=click.Path(path_type=Path, exists=True), help="File with a converter's check text.")
@click.option("--words", default=20, show_default=True, help="How many changed words to list.")
def audit(
    extension_folder: Path | None,
    run_name: str | None,
    folder: Path | None,
    glob: str,
    check_text: Path | None,
    words: int,
) -> None:
    """Audit an extension: dead tokens, changed words, round trips, gains. Exit status 1 when one is broken."""
    from vocabx_utils.corpus import read_source_tree
    from vocabx_utils.runs import MissingStageError
    from vocabx_utils.vocabulary.audit import CHECK_TEXT, audit_extension, texts_by_type
    from vocabx_utils.vocabulary.tokens import load_extension

    try:
        where, texts, training = _audit_inputs(extension_folder, run_name)
        extension = load_extension(where)
        if folder is not None:
            tree = read_source_tree(folder, glob)
            _print_tree(tree)
            texts = texts_by_type(tree.documents)
        text = check_text.read_text(encoding="utf-8") if check_text else CHECK_TEXT
        result = audit_extension(extension, texts, training, check_text=text)
    except (ValueError, MissingStageError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{extension.N} new tokens, strategy {extension.strategy}, ids {extension.V} and up")
    _print_audit(result)
    for row in result.changed_words.head(words).itertuples():
        click.echo(f"  {row.word!r}: {row.before}  ->  {row.after}")
    if not result.passed:
        raise SystemExit(1)


def _audit_inputs(
    extension_folder: Path | None, run_name: str | None
) -> tuple[Path, dict[str, list[str]], list[str] | None]:
    from vocabx_utils.runs import open_run, read_jsonl

    if (extension_folder is None) == (run_name is None):
        raise click.UsageError("Give either an extension folder or --run-name.")
    if extension_folder is not None:
        return extension_folder, {}, None
    run = open_run(str(run_name))
    splits = {
        name: [f"{row['query']}\n{row['answer']}" for row in read_jsonl(run.require("01", f"splits/{name}.jsonl"))]
        for name in ("train", "validation")
    }
    return run.require("01", "extension"), {"validation": splits["validation"]}, splits["train"]


def _held_out(tree: SourceTree, share: float) -> tuple[SourceTree, SourceTree]:
    """Keep every k-th file for measuring; with one or two files, measure on what was chosen on."""
    from vocabx_utils.corpus import SourceTree

    if share == 0 or len(tree.documents) < 3:
        return tree, tree
    every = max(2, round(1 / share))
    measured = [d for k, d in enumerate(tree.documents) if k % every == every - 1] or tree.documents[-1:]
    kept = {d.path for d in measured}
    return SourceTree([d for d in tree.documents if d.path not in kept]), SourceTree(measured)


def _print_tree(tree: SourceTree) -> None:
    size = sum(len(d.text) for d in tree.documents) / 1e6
    click.echo(f"Read {len(tree.documents)} files, {size:.2f} million characters.")
    if tree.long_lines:
        click.echo(f"Dropped {tree.long_lines} lines that are too long to be written by hand.")
    if tree.skipped:
        click.echo(f"Skipped {len(tree.skipped)} files:")
        for path, reason in tree.skipped[:20]:
            click.echo(f"  {path}: {reason}")
        if len(tree.skipped) > 20:
            click.echo(f"  … and {len(tree.skipped) - 20} more")


def _print_tokens(extension: Extension, limit: int = 40) -> None:
    table = extension.table().head(limit)
    click.echo(f"\n{extension.N} new tokens ({extension.strategy}), the first {len(table)}:")
    for row in table.itertuples():
        click.echo(f"  {row.id}  {row.text!r:34} {row.count:>7} times  {row.subtokens}")
    for note in extension.report["notes"]:
        click.echo(f"Note: {note}")


def _print_audit(audit: Audit) -> None:
    import pandas as pd

    if len(audit.by_type):
        click.echo(audit.by_type.to_string(index=False, float_format=lambda x: f"{x:.4g}"))
    for row in audit.table().to_dict("records"):
        of = "" if pd.isna(row["of"]) else f" of {row['of']}"
        click.echo(f"{row['finding']}: {row['count']}{of}  {row['examples']}".rstrip())
