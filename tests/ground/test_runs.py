"""Run folders: atomic files, keys, torn lines, missing stages."""

import errno
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vocabx_utils import runs


def test_claim_tells_new_resume_and_finished_apart(tmp_path):
    key = {"lr": 1e-3, "texts": ("a", "b")}
    assert runs.claim(tmp_path, key) == "new"
    assert runs.claim(tmp_path, key) == "resume"
    runs.finish(tmp_path, note="done")
    assert runs.claim(tmp_path, key) == "finished"
    provenance = runs.read_provenance(tmp_path)
    assert provenance["note"] == "done"
    assert provenance["key"]["lr"] == 1e-3
    assert provenance["versions"]["torch"] == torch.__version__.split("+")[0] or provenance["versions"]["torch"]


def test_claim_with_another_key_names_what_differs(tmp_path):
    runs.claim(tmp_path, {"lr": 1e-3, "seed": 0})
    with pytest.raises(runs.KeyMismatchError, match=r"lr: 0\.001 there, 0\.01 now"):
        runs.claim(tmp_path, {"lr": 1e-2, "seed": 0})


def test_missing_stage_names_notebook_and_command():
    run = runs.open_run("quick")
    with pytest.raises(runs.MissingStageError, match=r"01_tokenizer_extension makes it.*--only 01 --run-name quick"):
        run.require("01", "extension")


def test_variants_lists_only_finished_ones():
    run = runs.open_run("quick")
    for variant in ("b", "a", "torn"):
        runs.claim(run.stage("03", variant), {})
    for variant in ("b", "a"):
        runs.finish(run.stage("03", variant))
    assert run.variants("3") == ["a", "b"]


@pytest.mark.parametrize("name", ["7", "phase1", "3_", "03_phase"])
def test_unknown_stage_is_refused(name):
    with pytest.raises(ValueError, match="No notebook"):
        runs.stage_name(name)


def test_stage_names_in_every_spelling():
    assert {runs.stage_name(n) for n in ("3", "03", "03_phase1_training")} == {"03_phase1_training"}
    assert runs.stage_name("0") == "00_start"


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    runs.write_json(path, {"old": 1})

    def full_disk(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"a\.json.*No space left"):
        runs.write_json(path, {"new": 2})
    assert runs.read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_written_files_follow_the_umask(tmp_path):
    runs.write_text(tmp_path / "a.txt", "x")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~umask


def test_torn_last_line_is_left_out_and_overwritten(tmp_path):
    path = tmp_path / "rows.jsonl"
    runs.append_jsonl(path, {"n": 1})
    with path.open("a") as file:
        file.write('{"n": 2, "tex')
    assert runs.read_jsonl(path) == [{"n": 1}]
    runs.append_jsonl(path, {"n": 3})
    assert runs.read_jsonl(path) == [{"n": 1}, {"n": 3}]


def test_whole_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}')
    runs.append_jsonl(path, {"n": 3})
    assert runs.read_jsonl(path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_bad_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\nnot json\n{"n": 2}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2 is not JSON"):
        runs.read_jsonl(path)


def test_killed_writer_keeps_every_finished_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    code = (
        "import sys, itertools; from vocabx_utils.runs import append_jsonl\n"
        "for n in itertools.count(): append_jsonl(sys.argv[1], {'n': n}); print(n, flush=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    seen = [int(child.stdout.readline()) for _ in range(20)]
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert [row["n"] for row in runs.read_jsonl(path)][:20] == seen == list(range(20))


def test_tensors_and_tables_round_trip(tmp_path):
    rows = {"input_rows": torch.randn(3, 4), "head_rows": torch.randn(4, 3).T}
    runs.write_tensors(tmp_path / "r.safetensors", rows)
    back = runs.read_tensors(tmp_path / "r.safetensors")
    assert all(torch.equal(back[k], rows[k]) for k in rows)
    table = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    for name in ("t.csv", "t.parquet"):
        runs.write_table(tmp_path / name, table)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), table)
    with pytest.raises(ValueError, match=r"\.csv or \.parquet"):
        runs.write_table(tmp_path / "t.txt", table)


def test_a_damaged_tensor_file_is_refused_with_its_path(tmp_path):
    path = tmp_path / "rows.safetensors"
    runs.write_tensors(
        path, {"a": torch.arange(8.0), "b": torch.tensor(3), "c": torch.zeros(0, 4, dtype=torch.bfloat16)}
    )
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole[:-1] + b"\1", b"torn"):
        path.write_bytes(damaged)
        with pytest.raises(runs.DamagedFileError, match=r"rows\.safetensors is damaged"):
            runs.read_tensors(path)
    path.write_bytes(whole)
    assert runs.read_tensors(path)["b"] == 3
    save_file({"a": torch.arange(3.0)}, path)  # a file of others has no checksum
    assert torch.equal(runs.read_tensors(path)["a"], torch.arange(3.0))


def test_a_full_disk_is_named_with_the_path_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "rows.safetensors"
    runs.write_tensors(path, {"a": torch.zeros(2)})

    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match=r"Could not write .*rows\.safetensors .*No space left"):
        runs.write_tensors(path, {"a": torch.ones(2)})
    assert torch.equal(runs.read_tensors(path)["a"], torch.zeros(2))
    assert [p.name for p in tmp_path.iterdir()] == ["rows.safetensors"]


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path):
    (tmp_path / ".checkpoint-ab12cd_9.safetensors").write_bytes(b"half")
    (tmp_path / ".other-ab12cd_9.safetensors").write_bytes(b"half")
    runs.write_tensors(tmp_path / "checkpoint.safetensors", {"a": torch.zeros(2)})
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other-ab12cd_9.safetensors", "checkpoint.safetensors"]


def test_digest_does_not_depend_on_key_order():
    assert runs.digest({"a": 1, "b": [2]}) == runs.digest({"b": [2], "a": 1}) != runs.digest({"a": 1, "b": [3]})


def test_plain_progress_prints_lines_not_carriage_returns(capsys):
    with runs.progress(total=3, desc="steps") as bar:
        for _ in range(3):
            bar.update()
    captured = capsys.readouterr().err
    assert "steps: 100%" in captured
    assert "\r" not in captured


def test_progress_prints_plain_lines_where_nobody_watches(capsys):
    """B62: no carriage returns in logs and notebook files; speed and what was told stand in the line."""
    bar = runs.progress(range(40), desc="mean_ce", unit="step")
    for number in bar:
        bar.set_postfix_str(f"loss {number / 10:.1f}, 900 tokens/s", refresh=False)
    seen = capsys.readouterr().err
    lines = [line for line in seen.splitlines() if line.strip()]
    assert len(lines) == 1 and "\r" not in seen
    assert lines[0].startswith("mean_ce: 100%") and "40/40" in lines[0] and "loss 3.9, 900 tokens/s" in lines[0]


def test_a_row_that_a_kill_cut_inside_a_character_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = '{"text": "größe"}\n'.encode()
    path.write_bytes(whole + whole[: whole.index(b"\xb6")])
    assert runs.read_jsonl(path) == [{"text": "größe"}]
    runs.append_jsonl(path, {"text": "next"})
    assert [row["text"] for row in runs.read_jsonl(path)] == ["größe", "next"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_a_checkout_of_another_user_has_a_revision(tmp_path, monkeypatch):
    """git refuses to read it ("dubious ownership"), as in containers that mount the host's checkout."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("SUDO_UID", raising=False)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 12345, 12345)
    refused = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert "dubious ownership" in refused.stderr
    monkeypatch.setattr(runs, "project_root", lambda: folder)
    runs.git_revision.cache_clear()
    try:
        assert len(runs.git_revision() or "") == 12
    finally:
        runs.git_revision.cache_clear()


def test_a_result_that_does_not_fit_is_refused_with_its_margin(tmp_path, monkeypatch):
    free = runs.MARGIN + (3 << 20)
    monkeypatch.setattr(runs.shutil, "disk_usage", lambda place: SimpleNamespace(free=free if place.exists() else 0))
    place = tmp_path / "not" / "yet"  # its disk is that of the nearest folder that exists
    assert runs.require_space(place, 3 << 20, "the result", "make room") == free
    with pytest.raises(
        runs.SpaceError, match=r"the result needs 3\.0 MiB \+ 256 MiB margin .* 259\.0 MiB are free; make"
    ):
        runs.require_space(place, (3 << 20) + 1, "the result", "make room")
    assert not place.parent.exists()
