"""Facts on the first page of a report come from a run's files, and from nowhere else."""

from pathlib import Path

import pandas as pd

from vocabx_utils.analysis.report_front import Said, read_front
from vocabx_utils.files import write_json, write_table
from vocabx_utils.runs import Run
from vocabx_utils.thesis import CLAIMS


def test_an_empty_run_says_nothing(tmp_path: Path) -> None:
    front = read_front(Run("r", tmp_path))
    assert (front.facts, front.results, front.claims) == ({}, (), ())


def test_facts_name_model_tokens_and_the_last_day(tmp_path: Path) -> None:
    write_json(tmp_path / "00_start" / "key.json", {"model": "tiny"})
    write_json(tmp_path / "01_tokenizer_extension" / "key.json", {"n_tokens": 1200, "strategy": "added"})
    for stage, day in (("01_tokenizer_extension", "2026-05-07"), ("03_phase1_training/mean_ce", "2026-05-09")):
        sealed = {"finished": f"{day}T10:00:00+00:00", "versions": {"torch": "2.13.0"}, "git": day[-2:]}
        write_json(tmp_path / stage / "provenance.json", sealed)
    assert read_front(Run("r", tmp_path)).facts == {
        "Model": "tiny",
        "New tokens": "1,200, chosen by the strategy 'added'",
        "Finished": "9 May 2026",
        "Made with": "vocabx at revision 09, torch 2.13.0",
    }


def test_results_are_numbers_of_the_stages(tmp_path: Path) -> None:
    gains = {"type": "python", "texts": 40, "tokens_before": 2000, "tokens_after": 1900}
    write_table(tmp_path / "01_tokenizer_extension" / "gains.csv", pd.DataFrame([gains]))
    phase1 = {
        "variant": ["mean_untrained", "random_untrained", "mean_ce", "mean_kl_last"],
        "bpb": [1.5, 1.9, 1.4, 1.45],
    }
    write_table(tmp_path / "03_phase1_training" / "table.csv", pd.DataFrame(phase1))
    tuned = {"texts": "held out", "n": 16, "low": -0.02, "high": 0.01}
    rows = [
        tuned | {"model": "base", "bits_per_byte": 0.99, "difference": 0.0},
        tuned | {"model": "tuned_mean_ce", "bits_per_byte": 0.98, "difference": -0.01},
        tuned | {"texts": "solutions", "model": "tuned_mean_ce", "bits_per_byte": 0.5, "difference": 0.1},
    ]
    write_table(tmp_path / "05_benchmark_evaluation" / "bits_per_byte.csv", pd.DataFrame(rows))
    assert read_front(Run("r", tmp_path)).results == (
        "40 held-out texts (python) take 2,000 tokens with the old tokenizer and 1,900 with the new one, 5.0 % fewer.",
        "After phase 1 the best variant (mean init, CE) needs 1.400 bits per byte of held-out text; untrained new rows "
        "need 1.500.",
        "The fine-tuned model (mean init, CE) needs 0.980 bits per byte of held-out text, -0.010 against the base "
        "model (95 % interval -0.020 to +0.010, 16 texts).",
    )


def test_claims_are_told_once_for_each_answer_and_notebook(tmp_path: Path) -> None:
    def said(claim: str, answer: str, reason: str = "numbers") -> dict[str, str]:
        return {"claim": f"{claim} in a few words", "answer": answer, "reason": reason}

    write_json(tmp_path / "03_phase1_training" / "verdicts.json", [said("C10", "cannot tell"), said("C4", "confirmed")])
    write_json(
        tmp_path / "04_fine_tuning" / "verdicts.json",
        {"here": said("C9", "confirmed"), "there": said("C9", "confirmed")},
    )
    unseen = said("C14", "cannot tell", "not measured here: DS-1000 results")
    write_json(tmp_path / "05_benchmark_evaluation" / "verdicts.json", [unseen])
    write_json(tmp_path / "06_mechanistic_analysis" / "verdicts.json", [said("C4", "not confirmed")])
    assert read_front(Run("r", tmp_path)).claims == (
        Said("C4", CLAIMS["C4"], (("confirmed", "03_phase1_training"), ("not confirmed", "06_mechanistic_analysis"))),
        Said("C9", CLAIMS["C9"], (("confirmed", "04_fine_tuning"),)),
        Said("C10", CLAIMS["C10"], (("cannot tell", "03_phase1_training"),)),
        Said("C14", CLAIMS["C14"], (("not measured", "05_benchmark_evaluation"),)),
    )
