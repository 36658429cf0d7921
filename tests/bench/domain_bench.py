"""One model and one domain: learn rows, tune by LoRA, and measure an arm of `domain_arms`. `domains.py` is the command.

LoRA reads every document in each arm, whole, the same ones in each step and so in as many steps: the base's own tokens
plan them. Bits per byte and LoRA count every byte, behind a begin token. KL is always that from the frozen base, also
after LoRA, at the places where both tokenizers have a token border behind the first new token of a document; the base
with LoRA, which has no new tokens, is read at the borders of the first words arm.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import phrases
import torch
from bench_parts import free, phase1_training, records_of, rounded, rows_of, unextended
from domain_arms import Arm, lora_config, rows_config, settings_of, told_settings
from reproduction_arms import tune
from safetensors import safe_open

from vocabx_utils import files
from vocabx_utils.config import Phase1Config
from vocabx_utils.student import Student
from vocabx_utils.training.examples import AlignedExample, AlignedSet, Example, ExampleSet, whole_texts
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import Phase1Data, new_student, prepare
from vocabx_utils.training.starts import Start, from_rows
from vocabx_utils.training.teacher import TeacherStates, ask_teacher
from vocabx_utils.training.validation import evaluate
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.tokens import Extension, load_extension

_WATCHED = 16  # validation documents that a training's own losses are of; nothing is chosen by them


class Bench(phrases.Bench):
    """A model and a domain, and what arms with the same tokens share."""

    def __init__(self, options: argparse.Namespace, lora_rate: float = 0.0) -> None:
        super().__init__(options)
        self.settings = settings_of(options, lora_rate)
        self.places = f"merges-{min(options.n)}"  # where KL is read without new tokens
        self.extensions: dict[str, Extension] = {}
        # as another release of transformers reads a GGUF file's tokenizer
        self.base = dataclasses.replace(self.base, tokenizer=self.extension(self.places).original)
        self.planned = self.examples(self.train, self.base.tokenizer)
        self.learned: dict[str, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {}
        self.aligned: tuple[Any, Phase1Data] | None = None
        self.judged: tuple[Any, AlignedSet, TeacherStates] | None = None

    def extension(self, name: str) -> Extension:
        """An extension by name, loaded once."""
        if name not in self.extensions:
            self.extensions[name] = load_extension(self.options.data / "extensions" / name)
        return self.extensions[name]

    def examples(self, texts: Sequence[str], tokenizer: Any) -> ExampleSet:
        """Whole documents behind a begin token, as they are measured; SystemExit where one would have to be cut."""
        coded = [np.array([self.begin, *ids], np.int64) for ids in encode_all(tokenizer, texts)]
        limit = min(self.options.max_length, getattr(self.base.model.config, "max_position_embeddings", 10**9))
        if (longest := max(map(len, coded))) > limit:
            raise SystemExit(
                f"a document has {longest} tokens, more than {limit}, and all arms have to read all of it: raise "
                "--max-length as far as the model reads, or prepare shorter documents"
            )
        return ExampleSet(tuple(Example(ids) for ids in coded))

    # --- phase 1

    def rows_of(self, arm: Arm) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Input and head rows of an arm and what learning them took: found, or learned now."""
        tokens = self.planned.tokens - len(self.planned)
        variant, config = rows_config(arm, self.settings, self.options.thesis, self.options.seed, tokens)
        extension, recipe = self.extension(arm.extension), parse_variant(variant)
        if recipe.objective is None:
            return rows_of(new_student(recipe, self.base, extension.tokens, config)), {}
        facts = [variant, _recipe_facts(config), self._read(arm)]
        key = f"{self.label}-{self.kind}-{arm.extension}-{files.digest(facts)}"
        path = self.options.keep / f"{key}.safetensors" if self.options.keep else None
        if key not in self.learned and path is not None and path.exists():
            self.learned[key] = _kept(path)
        if key not in self.learned:
            self.learned = {key: self._learn(arm, variant, config)}  # of the last arm only
            if path is not None:
                _keep(path, *self.learned[key])
        return self.learned[key]

    def _read(self, arm: Arm) -> list[Any]:
        """What an arm's training reads: texts, model, and the new tokens where there are any."""
        tokens = [token.raw.hex() for token in self.extension(arm.extension).tokens] if arm.strategy else []
        return [files.digest(self.train), self.base.fingerprint, files.digest(tokens)]

    def _learn(self, arm: Arm, variant: str, config: Phase1Config) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        began = time.perf_counter()
        extension, data = self.extension(arm.extension), self._examples_of(arm, config)
        prepared = time.perf_counter() - began
        training = phase1_training(variant, self.base, extension, data, config)
        records, counts = records_of(training), data.train.counts()
        told = {
            "variant": variant, **_recipe_facts(config), "steps": training.total,
            "tokens": data.train.tokens * config.epochs, "seconds": round(sum(r["seconds"] for r in records), 2),
            "prepared_s": round(prepared, 1), "without_examples": int((counts == 0).sum()),
            "median_examples": float(np.median(counts)),
        }  # fmt: skip
        return rows_of(training.student), told

    def _examples_of(self, arm: Arm, config: Phase1Config) -> Phase1Data:
        """Examples and teacher, kept while arms with the same tokens and texts follow each other."""
        key = (arm.extension, config.window, config.train_windows, config.seed if config.window else 0)
        if self.aligned is None or self.aligned[0] != key:
            self.aligned = None
            free()
            few = self.validation[:_WATCHED]
            self.aligned = key, prepare(self.base, self.extension(arm.extension), self.train, few, config)
        return self.aligned[1]

    def start_of(self, arm: Arm) -> tuple[Start, dict[str, Any]]:
        """An arm's model before LoRA, and what phase 1 took."""
        if not arm.strategy:
            return unextended(self.base, copy.deepcopy(self.base.model)), {}
        rows, told = self.rows_of(arm)
        return from_rows(self.base, self.extension(arm.extension), rows["input"], rows["head"]), told

    # --- LoRA

    def tuned(self, start: Start, moving: bool = False) -> tuple[Start, dict[str, Any]]:
        """Tune an arm with the steps that the base's own tokens plan; new rows that are `moving` learn as well."""
        train = self.examples(self.train, start.tokenizer)
        watched = self.examples(self.validation[:_WATCHED], start.tokenizer)
        config = lora_config(self.settings, self.options.seed, moving)
        tuned, told = tune(start, train, watched, self.planned, config)
        (stage,) = told["stages"]
        names = ("steps", "texts", "tokens", "seconds", "trainable", "padding", "validation_loss")
        return tuned, {name: rounded(stage[name]) for name in names}

    def model_of(self, arm: Arm, write: bool = False) -> tuple[Start, dict[str, Any], dict[str, Any]]:
        """An arm's model as it is measured, and what phase 1 and LoRA took: found, or trained now.

        Args:
            write: whether a tuned model stays in --keep (a gigabyte for half a billion parameters).
        """
        start, phase1 = self.start_of(arm)
        if not arm.lora:
            return start, phase1, {}
        facts = [arm.name, told_settings(self.settings, self.options), self.options.seed, self._read(arm)]
        name = f"{self.label}-{self.kind}-{arm.name}-{arm.n}-{files.digest(facts)}.safetensors"
        path = self.options.keep / name if self.options.keep else None
        if path is not None and path.exists():
            weights, told = _kept(path)
            start.model.load_state_dict(weights)
            return start, phase1, told
        start, told = self.tuned(start, arm.moving)
        if write and path is not None:
            _keep(path, start.model.state_dict(), told)
        return start, phase1, told

    # --- measuring

    def measure_arm(self, arm: Arm) -> dict[str, Any]:
        """Train and measure an arm."""
        start, phase1, lora = self.model_of(arm)
        student, counted = student_of(start), self.counted(self.base.tokenizer, start.tokenizer)
        bits, sizes = self.bits(student, start.tokenizer), self.sizes()
        return {
            "arm": arm.name, "n": arm.n, "seed": self.options.seed, "strategy": arm.strategy, "model": self.label,
            "text": self.kind, "settings": told_settings(self.settings, self.options), "documents": len(sizes),
            "train_documents": len(self.train), **counted, "bpb": float(sum(bits) / sum(sizes)),
            **self.divergence(arm, student), "phase1": phase1 or None, "lora": lora or None,
            "bits": [round(float(value), 2) for value in bits], "bytes": sizes,
        }  # fmt: skip

    def speed_of_arms(self, arms: Sequence[Arm]) -> list[dict[str, Any]]:
        """Read how fast arms generate, in turns with each other and the base: a row for each."""
        starts = [self.model_of(arm)[0] for arm in arms]
        original = self.base.tokenizer
        saved = [self.counted(original, start.tokenizer)["saved"] for start in starts]
        own = [(start.model, start.tokenizer, share) for start, share in zip(starts, saved, strict=True)]
        read = self.speed_of(own, original)
        return [{"arm": arm.name, "n": arm.n} | row for arm, row in zip(arms, read, strict=True)]

    def divergence(self, arm: Arm, student: Student) -> dict[str, Any]:
        """KL from the frozen base at shared borders, in nats a place, and which borders they are."""
        name = arm.extension if arm.strategy else self.places
        examples, teacher = self._judged(name, plain=not arm.strategy)
        scores, _ = evaluate(student, examples, teacher, token_budget=self.options.token_budget)
        targets = scores["n_old_targets"] + scores["n_new_targets"]
        told = {key: rounded(scores[key]) for key in ("kl_identical", "kl_last")}
        return told | {"kl_places": name, "new_share": round(scores["n_new_targets"] / targets, 4)}

    def _judged(self, name: str, plain: bool) -> tuple[AlignedSet, TeacherStates]:
        if self.judged is None or self.judged[0] != (name, plain):
            self.judged = None
            free()
            extension = self.extension(name)
            aligned = align_texts(extension, self.validation)
            examples = whole_texts(aligned, extension.V, extension.N, max_length=self.options.max_length)
            examples = without_new_tokens(examples) if plain else examples
            teacher = ask_teacher(self.base, examples, token_budget=self.options.token_budget)
            self.judged = (name, plain), examples, teacher
        return self.judged[1], self.judged[2]


def _keep(path: Path, tensors: Mapping[str, torch.Tensor], told: dict[str, Any]) -> None:
    """Write what a training made and what it took."""
    files.write_tensors(path, tensors, {"told": json.dumps(told)})


def _kept(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read it again."""
    tensors = files.read_tensors(path)
    with safe_open(path, "pt") as file:
        return tensors, json.loads(file.metadata()["told"])


def student_of(start: Start) -> Student:
    """A model with its new rows as validation takes it, whether the blocks are the base's or not."""
    new = slice(start.new_ids.start, start.new_ids.stop)
    model: Any = start.model
    rows = [side.weight[new] for side in (model.get_input_embeddings(), model.get_output_embeddings())]
    return Student(model, start.new_ids.start, *rows) if len(start.new_ids) else Student(model, start.new_ids.start)


def without_new_tokens(examples: AlignedSet) -> AlignedSet:
    """The same texts and the same places, read by the original tokenizer on both sides."""

    def read_as_before(example: AlignedExample) -> AlignedExample:
        pairs = {anchor: found[:, [0, 0]] for anchor, found in example.pairs.items()}
        return dataclasses.replace(
            example, ids=example.original_ids, pairs=pairs, n_bytes=example.n_original_bytes,
            unmerged=np.zeros(0, np.int64),
        )  # fmt: skip

    return dataclasses.replace(examples, examples=tuple(map(read_as_before, examples.examples)), n_new=0)


def _recipe_facts(config: Phase1Config) -> dict[str, Any]:
    names = (
        "learning_rate", "head_learning_rate", "head_init", "epochs", "warmup", "rate_after", "average_last",
        "head_fit", "ce_decay", "token_sampling", "batch_size", "window", "train_windows", "max_length", "seed",
    )  # fmt: skip
    return {name: getattr(config, name) for name in names}
