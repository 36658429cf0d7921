"""Settings of each stage.

A notebook's parameter cell holds plain literals; the cell after it builds the dataclass of its stage, which refuses
names, types and ranges that it does not know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from vocabx_utils.settings import ConfigError, Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageConfig(Settings):
    """What every stage shares: which run, which model, where it computes, which seed."""

    # names of settings that came later: at their defaults the key of a run folder is what it was
    later: ClassVar[frozenset[str]] = frozenset()

    run_name: str = "quick"  # folder below `runs/`
    model: str = "smollm2-135m"  # name of a fetched model, hub id, local folder or GGUF file
    device: str = "auto"  # `auto` (CUDA if there is one, else CPU) or a torch device name
    # `auto` (bfloat16 on CUDA, float32 on CPU), `float32`, `bfloat16` or `float16`
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    seed: int = 0  # seed of every generator of the stage

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("run_name", self.run_name[:1] not in {"", "."} and "/" not in self.run_name, "a plain folder name")
        self.require_at_least(0, "seed")

    def key(self) -> dict[str, Any]:
        """Return the settings as the key of a run folder: those that came later count only where they were changed."""
        defaults = {f.name: f.default for f in dataclasses.fields(self) if f.name in self.later}
        return {k: v for k, v in self.to_dict().items() if k not in defaults or v != defaults[k]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig(StageConfig):
    """Notebook 01: the corpus and the new tokens."""

    later = frozenset({"max_phrase_bytes", "line_breaks", "mix_words", "max_cut", "phrase_form"})

    # where pairs come from: `packages` (functions of installed packages), `jsonl`, `hub` or `tree`
    corpus_source: Literal["packages", "jsonl", "hub", "tree"] = "packages"
    # import names, for `packages`
    packages: tuple[str, ...] = ("numpy", "pandas", "scipy", "matplotlib", "seaborn", "sklearn")
    corpus_path: str = ""  # JSON Lines file (`jsonl`), data set name (`hub`) or folder (`tree`)
    corpus_revision: str = ""  # revision of the hub data set
    corpus_glob: str = "*.h"  # which files, written as in a `.gitignore` file, several separated by commas, for `tree`
    template: Literal["thesis", "chat"] = "thesis"  # how a pair reads: `thesis` or `chat`
    n_tokens: int = 32  # new tokens wanted (N)
    # `merges` (ours), `added` (the thesis's) or `phrases` (ours, across words)
    strategy: Literal["merges", "added", "phrases"] = "merges"
    min_count: int = 4  # fewest occurrences of a token in the tokenizer split
    min_train_count: int = 4  # fewest occurrences in the training split; 0 keeps tokens that cannot be trained
    max_token_bytes: int = 32  # longest token inside a word
    keep_whitespace: bool = False  # propose tokens of pure whitespace
    # of `phrases` only: longest phrase, whether one may hold line breaks, whether words compete with them, how one
    # stands in the tokenizer, and the largest share of occurrences that may cut old tokens (form `literal`)
    max_phrase_bytes: int = 64
    line_breaks: bool = True
    mix_words: bool = True
    phrase_form: Literal["auto", "patterns", "literal"] = "auto"
    max_cut: float = 0.5
    # sizes of the splits
    tokenizer_pairs: int = 2000
    train_pairs: int = 1500
    validation_pairs: int = 400
    # text of each corpus of the comparison, in bytes for choosing and as much for measuring
    comparison_bytes: int = 300_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "n_tokens", "min_count")
        self.require_at_least(0, "min_train_count")
        self.require_at_least(2, "max_token_bytes", "max_phrase_bytes")
        self.require("max_cut", 0 <= self.max_cut <= 1, "a share from 0 to 1")
        self.require_at_least(1, "tokenizer_pairs", "train_pairs", "validation_pairs", "comparison_bytes")
        if self.corpus_source == "packages":
            self.require("packages", bool(self.packages), "at least one import name")
        else:
            self.require("corpus_path", bool(self.corpus_path), f"a path or name for {self.corpus_source!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlignmentConfig(StageConfig):
    """Notebook 02: how the two tokenizations of a text align."""

    lookahead: int = 20  # how far the thesis's algorithm looks ahead, in tokens
    texts: int = 2000  # validation texts that are aligned, at most
    kl_texts: int = 8  # texts with a wrong pair on which the KL is measured, at most
    kl_tokens: int = 160  # longest of those texts, in original tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "lookahead", "texts", "kl_texts", "kl_tokens")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase1Config(StageConfig):
    """Notebook 03: learning the new rows."""

    later = frozenset({
        "teacher_storage", "phrase_dropout", "head_learning_rate", "quantization", "average_last", "rate_after",
        "ce_decay", "token_sampling", "head_fit",
    })  # fmt: skip

    # `{input rows}_{objective}` or `{input rows}_untrained`, for example `mean_kl_last_ce0.3`; see
    # `vocabx_utils.training.objectives.parse_objective`
    variants: tuple[str, ...] = (
        "mean_untrained", "random_untrained", "mean_ce", "random_ce", "mean_kl_first", "random_kl_first",
        "mean_kl_last", "random_kl_last", "mean_kl_last_ce0.1",
    )  # fmt: skip
    # first values of the head rows; `auto` is `random` beside random input rows and `first` otherwise
    head_init: Literal["auto", "random", "mean", "first"] = "auto"
    learning_rate: float = 1e-2  # peak of the schedule, for both optimisers (the thesis: 4.2e-4)
    head_learning_rate: float = 0.0  # that of the head rows, 0 for the same
    epochs: int = 2  # of the first cycle: linear warm-up, then linear decay
    restart_epochs: int = 0  # of a second cycle after a warm restart, 0 for none (the thesis: 8 and then 4)
    warmup: float = 0.1  # share of a cycle's steps that warm up
    rate_after: Literal["linear", "constant"] = "linear"  # what the rates do after the warm-up: fall to 0, or stay
    average_last: float = 0.0  # share of all steps, the last ones, over whose rows the final rows are averaged
    head_fit: float = 0.0  # above 0: fit the head rows after the last step, pulled back as by so many positions
    ce_decay: bool = False  # let the CE beside a match (lambda) fall linearly to 0 over all steps
    # `each` reads every example once an epoch; `equal` draws as many, so that new tokens are seen about equally often
    token_sampling: Literal["each", "equal"] = "each"
    batch_size: int = 16  # texts or windows in a step, over all processes
    token_budget: int = 8192  # of one pass, with padding; a larger step is split and summed; 4 x it for a GPU's teacher
    window: int = 48  # tokens around a new token that are kept, 0 for whole texts
    train_windows: int = 112  # at most
    validation_windows: int = 48
    train_limit: int = 0  # most texts taken from a split, 0 for all
    validation_limit: int = 0
    max_length: int = 1024  # longest text in tokens; longer ones are cut
    checkpoint_steps: int = 50  # steps between checkpoints inside an epoch
    # fuse the small operations of each block: `auto` (on CUDA, where a measured pass says that it pays), `on` or `off`
    compile_blocks: Literal["auto", "on", "off"] = "auto"
    # how the teacher's states are stored: `model` (in its dtype), `bfloat16`, or `float8` with half of its size
    teacher_storage: Literal["model", "bfloat16", "float8"] = "model"
    # share of the new tokens in training texts that stay apart as their original tokens, so that a prompt that ends
    # inside one leads to nothing unseen; the same in every epoch. Validation texts are never changed
    phrase_dropout: float = 0.0
    sharded: bool = False  # spread the blocks over the processes, for bases that one device cannot hold
    gradient_checkpointing: Literal["never", "always"] = "never"  # compute blocks again in the backward pass
    # bits of the blocks' linear layers: `none` leaves them, `4bit` needs bitsandbytes
    quantization: Literal["none", "4bit"] = "none"
    require_improvement: bool = True  # fail if a variant that matches the teacher at `last` ends with a higher KL there

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("variants", bool(self.variants), "at least one variant")
        self.require("learning_rate", self.learning_rate > 0, "a positive number")
        self.require("epochs", self.epochs >= 1, "1 or more (untrained variants are named so)")
        for name in ("warmup", "phrase_dropout"):
            self.require(name, 0 <= getattr(self, name) < 1, "a share from 0 to below 1")
        self.require("average_last", 0 <= self.average_last <= 1, "a share from 0 to 1")
        self.require("window", self.window == 0 or self.window >= 4, "0 or at least 4 tokens")
        plain = self.quantization == "none" or not self.sharded
        self.require("quantization", plain, "'none' where sharded is true: a 4-bit base lies on each device whole")
        self.require_at_least(
            1, "batch_size", "token_budget", "train_windows", "validation_windows", "checkpoint_steps"
        )
        self.require_at_least(0, "head_learning_rate", "head_fit", "restart_epochs", "train_limit", "validation_limit")
        self.require_at_least(8, "max_length")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuneConfig(StageConfig):
    """Notebook 04: fine-tuning.

    What the thesis states (section "Phase 2"): four epochs of stage a, four of b at 2.2e-4 with a warm-up over the
    first epoch and rank 128, one of each half in c at 4.2e-5. The rest is unstated there and chosen here.
    """

    # "base" (LoRA alone, the control) and phase-1 variants, which go through a and b
    variants: tuple[str, ...] = ("base", "mean_ce", "mean_kl_last_ce0.1")
    without_a: tuple[str, ...] = ("mean_kl_last_ce0.1",)  # those that go through b once more without a (claim C8)
    full: tuple[str, ...] = ("mean_kl_last_ce0.1",)  # those that go through c too, after a where they have one (C9)
    # texts taken from the splits, those with most new tokens; 0 for all
    train_texts: int = 0
    validation_texts: int = 0
    # of one variant, in order; "a" whole embedding and head, "b" LoRA on all blocks, "c" blocks by halves
    stages: tuple[str, ...] = ("a", "b")
    # "all" learns the whole text, as the thesis's closing remarks read; "answer" the answer only
    loss_on: Literal["all", "answer"] = "all"
    max_length: int = 1024  # tokens kept of one text
    tokens_per_step: int = 16_384  # tokens behind one optimiser step
    tokens_per_batch: int = 16_384  # padded tokens that one process holds at once; bounds memory, not the result
    # passes over the data (of each half in c)
    a_epochs: int = 4
    # peak learning rates of AdamW
    a_rate: float = 1.0e-4
    # share of the steps with a rising rate; then a falls to 0, b and c stay. One over `b_epochs` is the thesis's
    # warm-up of b, its first epoch.
    a_warmup: float = 0.1
    b_epochs: int = 4
    b_rate: float = 2.2e-4
    b_warmup: float = 0.25
    c_epochs: int = 1
    c_rate: float = 4.2e-5
    c_warmup: float = 0.1
    # of the adapters; the update is scaled by alpha / rank
    lora_rank: int = 128
    lora_alpha: int = 128
    lora_dropout: float = 0.0
    lora_target: str = ""  # pattern for whole module names, empty for every linear layer of every block
    rows_in_b: bool = False  # let the new rows move during LoRA too
    c_refreeze: bool = True  # freeze the first half again while the second trains
    weight_decay: float = 0.0  # 0 by default: decay would pull rows of tokens that the data never shows towards 0
    clip_norm: float = 1.0  # largest gradient norm, over what moves; 0 turns it off
    gradient_checkpointing: Literal["auto", "always", "never"] = "auto"  # "auto" (in c only), "always" or "never"
    checkpoint_every: int = 0  # optimiser steps between checkpoints; 0 for the end of each epoch only
    # fuse the small operations of each block: `auto` (on CUDA, where a measured pass says that it pays), `on` or `off`
    compile_blocks: Literal["auto", "on", "off"] = "auto"
    sharded: bool = False  # spread the weights over the processes too, for bases that one device cannot hold

    def __post_init__(self) -> None:
        super().__post_init__()
        if missing := sorted({*self.without_a, *self.full} - set(self.variants)):
            raise ConfigError(f"without_a, full is {missing!r}; expected variants out of {list(self.variants)}.")
        self.require("without_a", "base" not in self.without_a, "variants with new tokens")
        known = bool(self.stages) and all(stage in ("a", "b", "c") for stage in self.stages)
        self.require("stages", known and len(set(self.stages)) == len(self.stages), "some of a, b, c, each once")
        self.require("dtype", self.dtype != "float16", "bfloat16 or float32 (float16 would need loss scaling)")
        self.require_at_least(
            1, "max_length", "tokens_per_step", "tokens_per_batch", "a_epochs", "b_epochs", "c_epochs"
        )
        for name in ("a_rate", "b_rate", "c_rate", "lora_rank", "lora_alpha"):
            self.require(name, getattr(self, name) > 0, "more than 0")
        for name in ("a_warmup", "b_warmup", "c_warmup", "lora_dropout"):
            self.require(name, 0 <= getattr(self, name) < 1, "from 0 to under 1")
        self.require_at_least(0, "weight_decay", "clip_norm", "checkpoint_every", "train_texts", "validation_texts")
        enough = self.tokens_per_batch >= self.max_length
        self.require("tokens_per_batch", enough, f"at least max_length ({self.max_length})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedModelsConfig(Settings):
    """Notebook 04: what is measured on the fine-tuned models, and which of them are exported."""

    exported: tuple[str, ...] = ("mean_kl_last_ce0.1",)  # variants that are written as plain Hugging Face folders
    measured_texts: int = 6  # texts of each forgetting set, at most
    measured_chars: int = 360  # characters of each of them, at most
    new_tokens: int = 32  # tokens of the continued prompt

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "measured_texts", "measured_chars", "new_tokens")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(StageConfig):
    """Notebook 05: benchmarks."""

    # `base`, variants of notebook 03, and `tuned_` before the name of one that notebook 04 exported
    variants: tuple[str, ...] = ("base", "mean_untrained", "mean_ce", "mean_kl_last_ce0.1")
    reference: str = "base"  # the variant that the others are compared with; named before results are seen
    benchmark_names: tuple[str, ...] = ("humaneval",)  # the benchmarks whose problems are answered
    # `thesis` (its template, code start in the answer block), `chat` or `completion`
    prompt_style: Literal["thesis", "chat", "completion"] = "thesis"
    # head of the answer block: `auto`, `none`, `fence` or `code`
    prefill: Literal["auto", "none", "fence", "code"] = "auto"
    bits_problems: int = 20  # problems of each benchmark that bits per byte are measured on, evenly spread; 0 for all
    held_out_pairs: int = 16  # validation pairs with new tokens that bits per byte are measured on as well
    answer_problems: int = 6  # as `bits_problems`, for generated and executed answers
    answer_variants: tuple[str, ...] = ("base", "mean_kl_last_ce0.1")  # variants that answer; empty for all
    max_new_tokens: int = 64  # longest answer
    batch_size: int = 0  # prompts in flight, 0 for as many as fit
    workers: int = 2  # programs executed at the same time
    strict: bool = True  # compare values outside the answer's process where the tests allow it (HumanEval and MBPP)
    power: float = 0.8  # probability with which a difference should be found, for the smallest detectable one

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ("humaneval", "mbpp", "bigcodebench", "ds1000")
        self.require("variants", bool(self.variants), "at least one variant")
        self.require("reference", self.reference in self.variants, f"one of {self.variants}")
        odd = sorted(set(self.answer_variants) - set(self.variants))
        self.require("answer_variants", not odd, f"names among {self.variants}")
        unknown = sorted(set(self.benchmark_names) - set(known))
        self.require("benchmark_names", bool(self.benchmark_names) and not unknown, f"names among {known}")
        self.require_at_least(0, "bits_problems", "held_out_pairs", "answer_problems", "batch_size")
        self.require_at_least(1, "max_new_tokens", "workers")
        self.require("power", 0 < self.power < 1, "a number between 0 and 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisConfig(StageConfig):
    """Notebook 06: inside the model."""

    # variants of phase 1 whose student is run (causal test, layers, lens); those that the run lacks are left out
    probed: tuple[str, ...] = ("mean_kl_last", "mean_ce", "random_kl_last", "random_kl_first", "random_ce")
    windows: int = 10  # most windows of validation text that teacher and student read
    # paired positions in a window before its new token and from it on
    before: int = 12
    after: int = 12
    # coordinates of the learned change that the causal test keeps besides a tenth of D; those above D are left out
    kept: tuple[int, ...] = (4, 16, 256)
    draws: int = 1  # repetitions with random coordinates
    bootstrap: int = 1000  # samples behind each interval
    batch_size: int = 8  # windows in one forward pass
    example_token: str = " estimator"  # the new token that is followed through the notebook; else the first one

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("probed", bool(self.probed), "at least one variant")
        self.require("kept", bool(self.kept) and min(self.kept) >= 0, "numbers of coordinates, 0 or more")
        self.require_at_least(1, "windows", "after", "draws", "bootstrap", "batch_size")
        self.require_at_least(0, "before")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareConfig(StageConfig):
    """Notebook 07: runs beside each other."""

    table: str = ""  # what `vocabx collect` has written, .csv or .parquet; empty for the stored runs of the checkout
    metric: str = "kl_identical"  # of notebook 03, at its last epoch, by variant
    reference: str = "mean_ce"  # the variant that the others are compared with; named before results are seen
    draws: int = 2000  # simulated comparisons behind each share of intervals

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("metric", bool(self.metric), "a metric of the table")
        self.require("table", self.table.endswith((".csv", ".parquet")) or not self.table, "a .csv or .parquet file")
        self.require_at_least(1, "draws")


STAGE_SETTINGS: dict[str, tuple[type[Settings], ...]] = {
    "00_start": (StageConfig,),
    "01_tokenizer_extension": (TokenizerConfig,),
    "02_alignment": (AlignmentConfig,),
    "03_phase1_training": (Phase1Config,),
    "04_fine_tuning": (FineTuneConfig, TunedModelsConfig),
    "05_benchmark_evaluation": (EvaluationConfig,),
    "06_mechanistic_analysis": (AnalysisConfig,),
    "07_compare_runs": (CompareConfig,),
}


def check_params(stage: str, params: Mapping[str, Any]) -> None:
    """Build the settings of a stage from the parameters of its notebook, as the notebook will.

    Parameters that are no setting (a sentence to show, for example) are passed over; bad values raise ConfigError.
    """
    for settings in STAGE_SETTINGS[stage]:
        settings.from_params(**{name: value for name, value in params.items() if name in settings.field_names()})
