"""Atomic files, torn lines, damaged tensors, digests."""

import errno
import os
import signal
import subprocess
import sys

import pandas as pd
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vocabx_utils import files


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    files.write_json(path, {"old": 1})

    def full_disk(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"a\.json.*No space left"):
        files.write_json(path, {"new": 2})
    assert files.read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_written_files_follow_the_umask(tmp_path):
    files.write_text(tmp_path / "a.txt", "x")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~umask


def test_torn_last_line_is_left_out_and_overwritten(tmp_path):
    path = tmp_path / "rows.jsonl"
    files.append_jsonl(path, {"n": 1})
    with path.open("a") as file:
        file.write('{"n": 2, "tex')
    assert files.read_jsonl(path) == [{"n": 1}]
    files.append_jsonl(path, {"n": 3})
    assert files.read_jsonl(path) == [{"n": 1}, {"n": 3}]


def test_whole_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}')
    files.append_jsonl(path, {"n": 3})
    assert files.read_jsonl(path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_bad_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\nnot json\n{"n": 2}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2 is not JSON"):
        files.read_jsonl(path)


def test_killed_writer_keeps_every_finished_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    code = (
        "import sys, itertools; from vocabx_utils.files import append_jsonl\n"
        "for n in itertools.count(): append_jsonl(sys.argv[1], {'n': n}); print(n, flush=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    seen = [int(child.stdout.readline()) for _ in range(20)]
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert [row["n"] for row in files.read_jsonl(path)][:20] == seen == list(range(20))


def test_tensors_and_tables_round_trip(tmp_path):
    rows = {"input_rows": torch.randn(3, 4), "head_rows": torch.randn(4, 3).T}
    files.write_tensors(tmp_path / "r.safetensors", rows)
    back = files.read_tensors(tmp_path / "r.safetensors")
    assert all(torch.equal(back[k], rows[k]) for k in rows)
    table = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    for name in ("t.csv", "t.parquet"):
        files.write_table(tmp_path / name, table)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), table)
    with pytest.raises(ValueError, match=r"\.csv or \.parquet"):
        files.write_table(tmp_path / "t.txt", table)


def test_a_damaged_tensor_file_is_refused_with_its_path(tmp_path):
    path = tmp_path / "rows.safetensors"
    files.write_tensors(
        path, {"a": torch.arange(8.0), "b": torch.tensor(3), "c": torch.zeros(0, 4, dtype=torch.bfloat16)}
    )
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole[:-1] + b"\1", b"torn"):
        path.write_bytes(damaged)
        with pytest.raises(files.DamagedFileError, match=r"rows\.safetensors is damaged"):
            files.read_tensors(path)
    path.write_bytes(whole)
    assert files.read_tensors(path)["b"] == 3
    save_file({"a": torch.arange(3.0)}, path)  # a file of others has no checksum
    assert torch.equal(files.read_tensors(path)["a"], torch.arange(3.0))


def test_a_full_disk_is_named_with_the_path_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "rows.safetensors"
    files.write_tensors(path, {"a": torch.zeros(2)})

    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match=r"Could not write .*rows\.safetensors .*No space left"):
        files.write_tensors(path, {"a": torch.ones(2)})
    assert torch.equal(files.read_tensors(path)["a"], torch.zeros(2))
    assert [p.name for p in tmp_path.iterdir()] == ["rows.safetensors"]


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path):
    (tmp_path / ".checkpoint-ab12cd_9.safetensors").write_bytes(b"half")
    (tmp_path / ".other-ab12cd_9.safetensors").write_bytes(b"half")
    files.write_tensors(tmp_path / "checkpoint.safetensors", {"a": torch.zeros(2)})
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other-ab12cd_9.safetensors", "checkpoint.safetensors"]


def test_digest_does_not_depend_on_key_order():
    assert files.digest({"a": 1, "b": [2]}) == files.digest({"b": [2], "a": 1}) != files.digest({"a": 1, "b": [3]})


def test_a_row_that_a_kill_cut_inside_a_character_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = '{"text": "größe"}\n'.encode()
    path.write_bytes(whole + whole[: whole.index(b"\xb6")])
    assert files.read_jsonl(path) == [{"text": "größe"}]
    files.append_jsonl(path, {"text": "next"})
    assert [row["text"] for row in files.read_jsonl(path)] == ["größe", "next"]
