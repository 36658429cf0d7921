"""Vocabulary expansion of language models by self-distillation.

The verbs of the package work on models and tokenizers of transformers and on lists of texts; each is loaded when it is
first asked for, and `help(vocabx_utils.learn_rows)` shows an example.

* All in one: `adapt`, from a model and a folder of texts to a model folder and a report.
* New tokens: `select_tokens`, `extend_tokenizer`, `add_tokens`, `align_text`, `load_extension`.
* Their rows: `first_rows`, `learn_rows`, `fine_tune`, `subtoken_cosines`.
* Models: `load_base_model`, `export_model`.
* What it is worth: `bits_per_byte`, `sample_answers`, `evaluate_answers`.

Behind them are the wings `vocabulary`, `training`, `evaluation` and `analysis`, then `adaptation`, `figures` and
`claims`; each says where to begin.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vocabx_utils.adaptation.run import adapt as adapt
    from vocabx_utils.analysis.similarity import subtoken_cosines as subtoken_cosines
    from vocabx_utils.evaluation.evaluate import evaluate_answers as evaluate_answers
    from vocabx_utils.evaluation.generation import sample_answers as sample_answers
    from vocabx_utils.evaluation.likelihood import bits_per_byte as bits_per_byte
    from vocabx_utils.models import load_base_model as load_base_model
    from vocabx_utils.training.export import export_model as export_model
    from vocabx_utils.training.in_memory import fine_tune as fine_tune
    from vocabx_utils.training.in_memory import learn_rows as learn_rows
    from vocabx_utils.vocabulary.alignment import align_text as align_text
    from vocabx_utils.vocabulary.extend import add_tokens as add_tokens
    from vocabx_utils.vocabulary.extend import extend_tokenizer as extend_tokenizer
    from vocabx_utils.vocabulary.initialization import first_rows as first_rows
    from vocabx_utils.vocabulary.proposals import select_tokens as select_tokens
    from vocabx_utils.vocabulary.tokens import load_extension as load_extension

_ROOMS = {
    "adapt": "adaptation.run",
    "select_tokens": "vocabulary.proposals",
    "extend_tokenizer": "vocabulary.extend",
    "add_tokens": "vocabulary.extend",
    "align_text": "vocabulary.alignment",
    "load_extension": "vocabulary.tokens",
    "first_rows": "vocabulary.initialization",
    "learn_rows": "training.in_memory",
    "fine_tune": "training.in_memory",
    "subtoken_cosines": "analysis.similarity",
    "load_base_model": "models",
    "export_model": "training.export",
    "bits_per_byte": "evaluation.likelihood",
    "sample_answers": "evaluation.generation",
    "evaluate_answers": "evaluation.evaluate",
}

__all__ = list(_ROOMS)


def __getattr__(name: str) -> Any:
    """Load a verb when it is first asked for."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its verbs are {', '.join(_ROOMS)}")
    verb = getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
    globals()[name] = verb
    return verb


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
