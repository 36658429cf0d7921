"""Notebooks 03 and 04: the rows of new tokens are learned (phase 1), then the model is fine-tuned (phase 2).

Begin with `phase1` and `finetuning`: each reads from top to bottom (prepare or open, train, one step, validate),
returns values and knows nothing of files. `in_memory` has each in one call; `loop` carries either out in a run folder,
with checkpoints, for `phase1_stage` and `finetuning_stage`.
Their parts: `examples`, `dropout` and `batches` (what is read), `objectives`, `losses`, `step_losses`, `goals` and
`softmax` (what is minimised), `teacher` and `shared_beginnings` (what is run once), `validation` and `checks` (what is
judged), `stages` and `stage_files` (what fine-tuning frees and stores), `checkpoints` and `processes`. Around them:
`starts`, `finetuning_variants`, `export`, `forgetting`, `continuations`, `prompt_cuts`, `timing`. From a shell, on one
device or several: `python -m vocabx_utils.training phase1` and `… finetune`.
"""
