"""The memory of a whole jail: what a group refuses, where one can be made, and what happens without."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vocabx_utils.evaluation import memory_group
from vocabx_utils.evaluation.environments import Environment
from vocabx_utils.evaluation.hostile import GOOD, TEST
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Strict, Task

SMALL = Limits(timeout_s=20, memory_mb=256, tmp_mb=64)
HOGS = {
    "processes": """
import os, time
def add(a, b):
    for _ in range(12):
        if os.fork() == 0:
            held = b"x" * (150 << 20)
            time.sleep(20)
    time.sleep(20)
""",
    "pages of an anonymous mapping that no process holds": """
import mmap, os, time
def add(a, b):
    for _ in range(10):
        if os.fork() == 0:
            held = mmap.mmap(-1, 200 << 20)
            for place in range(0, 200 << 20, 4096):
                held[place] = 1
            time.sleep(20)
    time.sleep(20)
""",
}


@pytest.fixture(autouse=True)
def fresh_search() -> Iterator[None]:
    memory_group.group_parent.cache_clear()
    memory_group.systemd_scopes.cache_clear()
    yield
    memory_group.group_parent.cache_clear()
    memory_group.systemd_scopes.cache_clear()


@pytest.fixture
def grouped() -> None:
    if memory_group.group_parent() is None:
        pytest.skip("no memory group can be made on this machine")


@pytest.mark.sandbox
@pytest.mark.parametrize("strict", [None, Strict(("add",))], ids=["usual", "strict"])
@pytest.mark.parametrize("forked", [False, True], ids=["fresh", "forked"])
@pytest.mark.parametrize("name", HOGS)
def test_processes_together_are_limited(
    name: str, forked: bool, strict: Strict | None, plain: Environment, grouped: None
) -> None:
    # the parent of the hogs sleeps: it reports nothing, and the kernel has killed for lack of memory
    with Sandbox(plain.view, forked=forked) as sandbox:
        verdict = sandbox.run(Task(HOGS[name], TEST, "asserts", strict), Limits(timeout_s=6, memory_mb=256, tmp_mb=64))
        assert (verdict.status, verdict.reason) == ("fail", "memory"), verdict.details
        assert sandbox.run(Task(GOOD, TEST, "asserts"), SMALL).status == "pass"


@pytest.mark.sandbox
def test_a_group_goes_with_its_worker(plain: Environment, grouped: None) -> None:
    parent = memory_group.group_parent()
    assert parent is not None
    with Sandbox(plain.view) as sandbox:
        sandbox.run(Task(GOOD, TEST, "asserts"), SMALL)
        assert sandbox._group is not None and sandbox._group.folder.is_dir()
        folder = sandbox._group.folder
    assert not folder.exists()


@pytest.mark.sandbox
def test_a_group_that_is_gone_is_made_anew(plain: Environment, grouped: None) -> None:
    """Between two programs a group is empty, and whoever clears up the controller may remove it."""
    with Sandbox(plain.view) as sandbox:
        sandbox.run(Task(GOOD, TEST, "asserts"), SMALL)
        assert sandbox._group is not None
        sandbox._group.folder.rmdir()
        assert sandbox.run(Task(GOOD, TEST, "asserts"), SMALL).status == "pass"
        assert sandbox._group.folder.is_dir()


def _controller(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        (folder / name).write_text("memory\n" if name == "cgroup.subtree_control" else "")
    return folder


def test_places_of_the_second_version_are_those_that_hand_memory_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(memory_group, "CGROUPS", tmp_path)
    own = _controller(tmp_path / "user.slice" / "app.slice" / "terminal.scope")
    (own / "cgroup.subtree_control").write_text("")
    slice_ = _controller(own.parent, "cgroup.subtree_control")
    monkeypatch.setattr(Path, "read_text", _reads("0::/user.slice/app.slice/terminal.scope\n", Path.read_text))
    assert list(memory_group._parents()) == [slice_]


def test_the_place_of_the_first_version_is_its_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(memory_group, "CGROUPS", tmp_path)
    monkeypatch.setattr(Path, "read_text", _reads("4:memory:/job\n2:cpu:/\n0::/\n", Path.read_text))
    assert list(memory_group._parents()) == [tmp_path / "memory" / "job"]


def _reads(words: str, original):
    return lambda self, *args, **kwargs: words if str(self) == "/proc/self/cgroup" else original(self, *args, **kwargs)


@pytest.mark.parametrize("version", [1, 2])
def test_limits_are_written_in_the_words_of_the_kernel(version: int, tmp_path: Path) -> None:
    group = memory_group.MemoryGroup(tmp_path)
    if version == 2:
        (group.folder / "memory.max").write_text("max")
    group.limit(100)
    found = {file.name: file.read_text() for file in group.folder.iterdir()}
    if version == 2:
        assert found == {"memory.max": str(100 << 20), "memory.swap.max": "0"}
    else:
        assert found == {"memory.limit_in_bytes": str(100 << 20), "memory.memsw.limit_in_bytes": str(100 << 20)}


@pytest.mark.parametrize(
    ("name", "text"),
    [("memory.events", "low 0\noom 4\noom_kill 3\n"), ("memory.oom_control", "under_oom 0\noom_kill 3\n")],
)
def test_kills_are_read(name: str, text: str, tmp_path: Path) -> None:
    group = memory_group.MemoryGroup(tmp_path)
    assert group.kills() == 0
    (group.folder / name).write_text(text)
    assert group.kills() == 3


def test_groups_of_processes_that_are_gone_are_removed(tmp_path: Path, monkeypatch) -> None:
    left, others = tmp_path / "vocabx-999999999-0", tmp_path / f"vocabx-{os.getpid()}-77"
    left.mkdir()
    others.mkdir()
    monkeypatch.setattr(memory_group, "_parents", lambda: iter([tmp_path]))
    memory_group.group_parent()
    assert (left.exists(), others.exists()) == (False, True)


def test_without_a_group_a_scope_of_systemd_is_tried(tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "systemd-run"
    program.write_text('#!/bin/sh\necho "$@" > "$(dirname "$0")/asked"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(memory_group, "_parents", lambda: iter(()))
    assert memory_group.group_parent() is None
    assert memory_group.describe() == "a scope of systemd"
    assert "--scope" in (tmp_path / "asked").read_text() and "MemoryMax=512M" in (tmp_path / "asked").read_text()
    command = memory_group.in_scope(["bwrap", "--version"], 100)
    assert command[0] == str(program) and command[-3:] == ["--", "bwrap", "--version"]
    program.write_text("#!/bin/sh\nexit 1\n")
    memory_group.systemd_scopes.cache_clear()
    assert memory_group.describe() == ""
