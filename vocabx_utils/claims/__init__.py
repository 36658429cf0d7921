"""Claims C1 to C17 of the thesis: one rule each.

Each `judge_c…` takes tables or arrays and returns a `Verdict`; files are read elsewhere. One principle holds for all: a
claim is confirmed or not confirmed only where an interval excludes the other answer, else we cannot tell. Begin with
`verdict`; then `losses` (results of phase 1, one number a run), `rows` (where new rows point), `tuning` (fine-tuning)
and `answers` (benchmarks). `stored` judges what `results` keeps of measurements at full size, and `overview` puts the
verdicts of all settings into one table.
"""

# ruff: noqa: F401

from vocabx_utils.claims.answers import judge_c10, judge_c11, judge_c14, judge_c15, judge_c16, likelihood_sentences
from vocabx_utils.claims.losses import judge_c1, judge_c2, judge_c3, judge_c7, judge_c12, judge_c13, judge_c17
from vocabx_utils.claims.overview import (
    Setting,
    collect,
    collect_reproduction,
    collect_stored,
    overview,
    read_settings,
    tell,
)
from vocabx_utils.claims.rows import FEW, judge_c4, judge_c5, judge_c6, training_ends
from vocabx_utils.claims.stored import judge_stored
from vocabx_utils.claims.tuning import judge_c8, judge_c9, judge_tuned
from vocabx_utils.claims.verdict import Verdict, agreement, box
