"""Execute references with hostile programs among them, and compare verdicts and seconds with a run without them.

    VOCABX_DATA=shared/data python tests/bench/hostile_mix.py [--benchmarks humaneval,mbpp] [--modes fresh,forked]

A hostile program goes in front of every tenth reference. `--share 0.1` takes every tenth reference only;
`--table` runs each program alone, in the plain interpreter, and prints in Markdown what became of it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vocabx_utils.evaluation.benchmarks import INFO
from vocabx_utils.evaluation.environments import Environment, environment_for, plain_environment
from vocabx_utils.evaluation.execution import Job, run_jobs
from vocabx_utils.evaluation.hostile import GOOD, TEST
from vocabx_utils.evaluation.kept import kept_problems, reference_timeouts, strict_ids
from vocabx_utils.evaluation.references import reference_jobs
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Strict, Task
from vocabx_utils.files import write_json

EVERY = 10  # references between two hostile programs
STEP = 7  # from one hostile program to the next, so that neighbours in the list below do not follow each other
_HEAD = """
import ctypes, fcntl, mmap, os, resource, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
others = [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]
def tried(function, *args):
    try:
        return function(*args)
    except Exception:
        return None
def with_child(function):
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    return child
"""
_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
_SMALL = {"RLIMIT_AS": 300 << 20, "RLIMIT_CPU": 1, "RLIMIT_NOFILE": 4, "RLIMIT_NPROC": 1}
_SIGNALS = {"kill": "SIGKILL", "stop": "SIGSTOP", "terminate": "SIGTERM"}

# What each program does before it gives a right answer, by name.
ATTACKS: dict[str, str] = {
    **{
        f"prlimit {name.removeprefix('RLIMIT_')} of all others": f"""
for pid in others:
    tried(resource.prlimit, pid, resource.{name}, ({_SMALL.get(name, 0)}, {_SMALL.get(name, 0)}))
"""
        for name in _LIMITS
    },
    **{
        f"{verb} all others": f"""
for pid in others:
    tried(os.kill, pid, signal.{name})
"""
        for verb, name in _SIGNALS.items()
    },
    "stop everything at once": "tried(os.kill, -1, signal.SIGSTOP)\n",
    "kill the parent's group": "tried(os.killpg, os.getpgid(os.getppid()), signal.SIGKILL)\n",
    "stop the parent through a pidfd": """
folder = f"/proc/{os.getppid()}"  # stands for its process as a pidfd does
for descriptor in (tried(os.pidfd_open, os.getppid()), tried(os.open, folder, os.O_RDONLY)):
    if descriptor is not None:
        tried(signal.pidfd_send_signal, descriptor, signal.SIGSTOP)
""",
    "stop the parent through a descriptor's owner": """
reading, writing = os.pipe()
tried(fcntl.fcntl, reading, fcntl.F_SETOWN, os.getppid())
tried(fcntl.fcntl, reading, 10, int(signal.SIGSTOP))  # F_SETSIG
tried(fcntl.fcntl, reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
os.write(writing, b"x")
""",
    "nice for all others": "[tried(os.setpriority, os.PRIO_PROCESS, pid, 19) for pid in others]\n",
    "nice for the user": "tried(os.setpriority, os.PRIO_USER, os.getuid(), 19)\n",
    "nice for the parent's group": "tried(os.setpriority, os.PRIO_PGRP, os.getpgid(os.getppid()), 19)\n",
    "idle scheduler": """
for pid in others:
    tried(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
""",
    "one processor": "[tried(os.sched_setaffinity, pid, {0}) for pid in others]\n",
    "idle input and output": "[libc.syscall(251, 1, pid, 3 << 13) for pid in others]\n",
    "trace and write the parent": """
libc.ptrace(16, os.getppid(), 0, 0)
for name in ("mem", "oom_score_adj", "comm", "fd/3"):
    tried(lambda name=name: open(f"/proc/{os.getppid()}/{name}", "wb").write(b"1000"))
""",
    "SysV memory": """
libc.shmat.restype = ctypes.c_void_p
for key in range(1, 4):
    number = libc.shmget(key, 300 << 20, 0o1666)
    address = libc.shmat(number, None, 0) if number >= 0 else None
    if address and address != ctypes.c_void_p(-1).value:
        ctypes.memset(address, 1, 300 << 20)
""",
    "SysV semaphores and messages": """
libc.semget(7, 100, 0o1666); number = libc.msgget(7, 0o1666)
libc.msgsnd(number, struct.pack("l", 1) + b"x" * 4096, 4096, 0o4000)
""",
    "message queue": """
tried(ctypes.CDLL("librt.so.1").mq_open, b"/left", os.O_CREAT | os.O_RDWR, 0o666, None)
""",
    "memfd": """
for number in range(20):
    descriptor = tried(os.memfd_create, f"m{number}")
    for _ in range(60 if descriptor is not None else 0):
        tried(os.write, descriptor, bytes(4 << 20))
""",
    "six processes of 900 MB": """
for _ in range(6):
    with_child(lambda: (bytearray(b"x") * (900 << 20), time.sleep(1)))
time.sleep(0.5)
""",
    "6 GB": "data = bytearray(6 << 30)\n",
    "shared memory for all": """
data = tried(mmap.mmap, -1, 3 << 30)
for place in range(0, (3 << 30) if data else 0, 1 << 21):
    data[place] = 1
""",
    "pipes full of bytes": """
kept = []
for _ in range(100):
    ends = tried(os.pipe)
    if ends:
        kept.append(ends)
        tried(fcntl.fcntl, ends[1], 1031, 1 << 20)
        os.set_blocking(ends[1], False)
        tried(os.write, ends[1], bytes(1 << 20))
""",
    "fill /tmp and /dev/shm": """
for folder in ("/tmp", "/dev/shm"):
    for number in range(40):
        tried(lambda: open(f"{folder}/fill{number}", "wb").write(bytes(32 << 20)))
""",
    "20,000 files": """
for number in range(20_000):
    open(f"/tmp/flood{number}", "w").close()
""",
    "files until time is nearly over": """
os.mkdir("/tmp/flood")
begin = time.monotonic()
while time.monotonic() < begin + 1.5:
    os.close(os.open(f"/tmp/flood/{time.monotonic_ns()}", os.O_CREAT))
""",
    "folders in folders": """
os.chdir("/tmp")
for _ in range(1500):
    os.mkdir("d"); os.chdir("d")
""",
    "locked folders": """
os.makedirs("/tmp/a/b/c"); open("/tmp/a/b/c/x", "w").close()
for folder in ("/tmp/a/b/c", "/tmp/a/b", "/tmp/a"):
    os.chmod(folder, 0)
""",
    "a link in place of the work folder": """
import shutil
os.chdir("/tmp"); shutil.rmtree("/tmp/w"); os.symlink("/dev/shm", "/tmp/w")
""",
    "a file in place of the work folder": """
import shutil
os.chdir("/tmp"); shutil.rmtree("/tmp/w"); open("/tmp/w", "w").close()
""",
    "own user namespace with a file system": """
if libc.unshare(0x10000000 | 0x00020000) == 0:
    libc.mount(b"none", b"/tmp", b"tmpfs", 0, b"size=8g")
    for number in range(12):
        tried(lambda: open(f"/tmp/big{number}", "wb").write(bytes(60 << 20)))
""",
    "clone into a user namespace": "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) == 0 and os._exit(0)\n",
    "mount through the new calls": "libc.syscall(430, b'tmpfs', 0)\n",
    "keyrings": """
for number in range(150):
    libc.syscall(248, b"user", b"k%d" % number, bytes(100), 100, -4)
libc.syscall(250, 1, b"left")
""",
    "vsock": """
channel = tried(socket.socket, 40, socket.SOCK_STREAM)
if channel:
    channel.settimeout(1)
    tried(channel.connect, (2, 1024))
""",
    "descriptors in a cycle": """
left, right = socket.socketpair()
opened = [int(name) for name in os.listdir("/proc/self/fd")]
for descriptor in opened:
    tried(socket.send_fds, left, [b"x"], [descriptor])
tried(socket.send_fds, left, [b"x"], [left.fileno(), right.fileno()])
""",
    "descriptors in a cycle, then no report": """
left, right = socket.socketpair()
for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
    tried(socket.send_fds, left, [b"x"], [descriptor])
tried(socket.send_fds, left, [b"x"], [left.fileno(), right.fileno()])
os._exit(0)
""",
    "100 threads": """
for _ in range(100):
    tried(lambda: threading.Thread(target=time.sleep, args=(30,), daemon=True).start())
""",
    "a fork bomb": """
for _ in range(100):
    tried(with_child, lambda: [tried(os.fork) for _ in range(10)] and time.sleep(5))
""",
    "a daemon that ignores signals": """
def daemon():
    os.setsid()
    for number in range(1, 65):
        tried(signal.signal, number, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(60)
with_child(daemon)
""",
    "eight busy daemons": """
def busy():
    os.setsid()
    while True:
        pass
for _ in range(8):
    with_child(busy)
""",
    "inotify watches": """
for _ in range(200):
    descriptor = libc.inotify_init()
    libc.inotify_add_watch(descriptor, b"/tmp", 0xFFF)
""",
    "abstract socket": """
def hold():
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\\0left"); listener.listen(); time.sleep(60)
with_child(hold)
""",
    "ends without a word": "os._exit(0)\n",
    "segmentation fault": "ctypes.string_at(0)\n",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)\n",
    "endless loop": "while True: pass\n",
    "closes every descriptor": "os.closerange(0, 256)\n",
    "a report without an end": """
for descriptor in range(3, 64):
    tried(os.write, descriptor, (1 << 60).to_bytes(8, "big") + b"{")
os._exit(0)
""",
    "half a report": """
for descriptor in range(3, 64):
    tried(os.write, descriptor, (100).to_bytes(8, "big") + b"{")
os._exit(0)
""",
    "talks to the control socket": """
for descriptor in range(3, 256):
    tried(lambda: socket.socket(fileno=os.dup(descriptor)).send(b"dddd"))
""",
    "replaces compile": """
import builtins
real = builtins.compile
builtins.compile = lambda source, *args, **options: real("pass", *args, **options)
def add(a, b): return None
""",
    "replaces what the runner uses": """
import builtins, json, traceback, unittest
builtins.sorted = lambda *args, **options: []
traceback.format_exception = json.dumps = None
""",
    "floods standard output": """
for _ in range(200):
    os.write(1, bytes(1 << 20)); os.write(2, bytes(1 << 20))
""",
}

# An answer that fails wherever something of an earlier program is left.
VICTIM = """
import os, resource
def add(a, b):
    assert resource.getrlimit(resource.RLIMIT_NPROC)[0] == 64, "processes"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256, "open files"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 64 << 20, "file size"
    assert resource.getrlimit(resource.RLIMIT_STACK)[0] != 0, "stack"
    assert os.getpriority(os.PRIO_PROCESS, 0) == @NICE@ and os.sched_getscheduler(0) == @SCHEDULER@, "priority"
    assert len(os.sched_getaffinity(0)) == @PROCESSORS@, "processors"
    assert sorted(set(os.listdir("/tmp")) | set(os.listdir("/dev/shm"))) == ["w"], os.listdir("/tmp")
    assert [name for name in os.listdir(".") if name != ".config"] == []
    for kind in ("shm", "sem", "msg"):
        assert len(open(f"/proc/sysvipc/{kind}").readlines()) == 1, kind
    assert len([name for name in os.listdir("/proc") if name.isdigit()]) <= 3, "processes are left"
    return len(bytes(200 << 20)) and a + b
"""


def victim() -> str:
    """The answer that notices what an earlier one has left, for this machine's usual state."""
    facts = {
        "@NICE@": os.getpriority(os.PRIO_PROCESS, 0),
        "@SCHEDULER@": os.sched_getscheduler(0),
        "@PROCESSORS@": len(os.sched_getaffinity(0)),
    }
    code = VICTIM
    for name, value in facts.items():
        code = code.replace(name, str(value))
    return code


def attack(name: str) -> str:
    """The whole program: the attack, and a right answer unless the attack has defined one of its own."""
    code = ATTACKS[name]
    return _HEAD + code if "def add(" in code else _HEAD + code + GOOD


def mixed(jobs: Sequence[Job], benchmark: str) -> list[Job]:
    """The jobs, a hostile one in front of every tenth."""
    names = list(ATTACKS)
    found: list[Job] = []
    for place, job in enumerate(jobs):
        if place % EVERY == 0:
            number = place // EVERY
            name = names[number * STEP % len(names)]
            strict = Strict(("add",)) if INFO[benchmark].strict else None
            task = Task(attack(name), TEST, "asserts", strict)
            found.append(Job(f"hostile/{number}/{name}", 0, task, Limits(timeout_s=INFO[benchmark].timeout_s), ""))
        found.append(job)
    return found


def measure(jobs: Sequence[Job], environment: Environment, fast: bool, workers: int) -> tuple[dict[str, str], float]:
    """Verdicts by name, and wall seconds."""
    begin = time.monotonic()
    verdicts = {
        job.task_id: verdict.status for job, verdict, _ in run_jobs(jobs, environment, workers=workers, fast=fast)
    }
    return verdicts, time.monotonic() - begin


def compare(benchmark: str, mode: str, share: float, workers: int) -> dict[str, Any]:
    """Run the kept references without and with hostile programs, one run straight after the other."""
    environment = environment_for(benchmark)
    problems = kept_problems(benchmark)
    problems = problems[:: max(1, round(1 / share))]
    jobs = reference_jobs(problems, environment, reference_timeouts(benchmark))
    if outside := strict_ids(problems):
        strict = reference_jobs(problems, environment, reference_timeouts(benchmark), strict=True)
        jobs = [apart if job.task_id in outside else job for job, apart in zip(jobs, strict, strict=True)]
    clean, clean_seconds = measure(jobs, environment, mode == "forked", workers)
    among = mixed(jobs, benchmark)
    found, seconds = measure(among, environment, mode == "forked", workers)
    # in the order of the problems: `clean` has that in which the workers finished
    differing = [job.task_id for job in jobs if found[job.task_id] != clean[job.task_id]]
    return {
        "benchmark": benchmark,
        "mode": mode,
        "references": len(jobs),
        "hostile": len(among) - len(jobs),
        "passed_clean": sum(status == "pass" for status in clean.values()),
        "differing": differing,
        "seconds_clean": round(clean_seconds, 1),
        "seconds_mixed": round(seconds, 1),
        "ratio": round(seconds / clean_seconds, 2),
    }


def table() -> str:
    """What becomes of each program in each mode, in Markdown; a star where the answer after it was disturbed."""
    lines = ["| program | fresh | forked | strict |", "| --- | --- | --- | --- |"]
    view, limits = plain_environment().view, Limits(timeout_s=5)
    after = Task(victim(), TEST, "asserts")
    with Sandbox(view) as fresh, Sandbox(view, forked=True) as forked, Sandbox(view, forked=True) as strict:
        for name in ATTACKS:
            cells = []
            for sandbox, part in ((fresh, None), (forked, None), (strict, Strict(("add",)))):
                verdict = sandbox.run(Task(attack(name), TEST, "asserts", part), limits)
                disturbed = sandbox.run(after, limits).status != "pass"
                cells.append((verdict.reason or verdict.status) + " *" * disturbed)
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks", default="humaneval,mbpp,bigcodebench")
    parser.add_argument("--modes", default="fresh,forked")
    parser.add_argument("--share", type=float, default=1.0, help="part of the references")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    parser.add_argument("--table", action="store_true", help="run each program alone instead")
    options = parser.parse_args(arguments)
    if options.table:
        print(table())
        return 0
    rows = []
    for benchmark in options.benchmarks.split(","):
        for mode in options.modes.split(","):
            rows.append(compare(benchmark, mode, options.share, options.workers))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                write_json(options.out, rows)
    return int(any(row["differing"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
