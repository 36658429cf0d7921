"""`vocabx eval answers`: table and verdicts of a run whose answers were written on a machine without a sandbox."""

from __future__ import annotations

import pandas as pd
import pytest
from click.testing import CliRunner
from evaluation.evaluation_parts import humaneval_problem, mbpp_problem

from vocabx_utils import files, runs
from vocabx_utils.claims import Verdict
from vocabx_utils.cli import main
from vocabx_utils.evaluation import contenders
from vocabx_utils.evaluation.jail import SandboxUnavailableError, find_bubblewrap
from vocabx_utils.evaluation.programs import reference_answer

PROBLEMS = [humaneval_problem(), mbpp_problem()]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> runs.Run:
    """A run of which only notebook 05's folder is there: three contenders with answers, bits, and a verdict."""
    monkeypatch.setattr(contenders, "load_benchmark", lambda name: [p for p in PROBLEMS if p.benchmark == name])
    made = runs.open_run("away")
    right = [{"task_id": p.task_id, "solution": reference_answer(p), "raw_solution": ""} for p in PROBLEMS]
    nothing = [row | {"solution": "pass"} for row in right]
    for name, rows in {"base": right, "mean_ce": nothing, "mean_kl_first": right[:1] + nothing[1:]}.items():
        files.write_jsonl(made.stage("05", name) / "samples.jsonl", rows)
    bits = [("solutions", "base", 0.5), ("solutions", "mean_ce", 0.7), ("solutions", "mean_kl_first", 0.6)]
    bits += [("held out", "base", 9.0)]
    files.write_table(
        made.stage("05") / "bits_per_byte.csv", pd.DataFrame(bits, columns=["texts", "model", "bits_per_byte"])
    )
    seen = [Verdict("C15", "confirmed", "counted"), Verdict("C11", "cannot tell", "no answer was executed")]
    files.write_json(made.stage("05") / "verdicts.json", [verdict.to_dict() for verdict in seen])
    return made


def test_a_reference_without_answers_and_a_run_without_any_are_refused(run: runs.Run) -> None:
    answer = CliRunner().invoke(main, ["eval", "answers", "away", "--reference", "tuned_base"])
    assert answer.exit_code == 1
    assert "base, mean_ce, mean_kl_first" in answer.output
    answer = CliRunner().invoke(main, ["eval", "answers", "nowhere"])
    assert answer.exit_code == 1
    assert "There is no run 'nowhere'" in answer.output and "Known: away" in answer.output
    assert not (run.folder.parent / "nowhere").exists()
    runs.open_run("empty")
    answer = CliRunner().invoke(main, ["eval", "answers", "empty"])
    assert answer.exit_code == 1
    assert "05_benchmark_evaluation" in answer.output


def test_results_table_and_verdicts_come_to_where_the_notebook_puts_them(run: runs.Run) -> None:
    try:
        find_bubblewrap()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    answer = CliRunner().invoke(main, ["eval", "answers", "away"])
    assert answer.exit_code == 0, answer.output
    assert "2 of 2 reference solutions pass" in answer.output
    folder = run.stage("05")
    table = pd.read_csv(folder / "table.csv").set_index("model")
    assert table["combined passed"].to_dict() == {"base": "2/2", "mean_ce": "0/2", "mean_kl_first": "1/2"}
    verdicts = {found.claim: found for found in map(Verdict.from_dict, files.read_json(folder / "verdicts.json"))}
    assert list(verdicts) == ["C10", "C11", "C14", "C15", "C16"]
    assert verdicts["C15"].answer == "confirmed"  # as the notebook left it
    # bits 0.5, 0.6, 0.7 of answers that pass in 2, 1 and 0 of 2 problems
    assert "Spearman -1.00" in verdicts["C11"].reason
