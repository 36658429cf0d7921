"""Run test files each by itself, several at a time, and show the log of each that does not pass.

python tools/run_alone.py [--at-once N] [FILE …]

Without names: the fast tests of every file under tests/ but tests/matrix. No test may need what a test of another file
left behind. Every file gets a process of its own, forked from one that has imported only what `tests/conftest.py`
needs in any case and nothing of this repository: the seconds of these imports are paid once, not by each file.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_TEST = pytest.ExitCode.NO_TESTS_COLLECTED
# nbval is for notebooks and takes a second to import; the warning is about plugins that came with `import_once`
QUIET = ["-q", "-p", "no:nbval", "-W", "ignore::pytest.PytestAssertRewriteWarning"]


def find_files() -> list[Path]:
    """Return the test files, the largest first, so that no long one is left for the end."""
    found = (path for path in (ROOT / "tests").rglob("test_*.py") if "matrix" not in path.parts)
    return sorted(found, key=lambda path: (-path.stat().st_size, path))


def import_once() -> None:
    """Import what the conftest of all tests imports from other packages; no thread may have been started here."""
    import transformers
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    assert transformers and LlamaForCausalLM and PreTrainedTokenizerFast


def start(path: Path, log: Path, words: Sequence[str]) -> int:
    """Fork a process that runs one file, with its output in `log`; returns the id of the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        status = int(pytest.main([*QUIET, *words, str(path)]))
    except BaseException:  # nothing may come back into the loop of the parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def finished(files: Sequence[Path], words: Sequence[str], at_once: int, scratch: Path) -> Iterator[tuple[Path, int]]:
    """Run the files, `at_once` at a time; yields each with its exit status as it ends."""
    waiting, running = list(files), {}
    while waiting or running:
        while waiting and len(running) < at_once:
            path = waiting.pop(0)
            running[start(path, scratch / str(files.index(path)), words)] = path
        process, status = os.wait()
        yield running.pop(process), os.waitstatus_to_exitcode(status)


def main() -> int:
    """Run the files and say which do not pass; the status is 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, metavar="N")
    asked = parser.parse_args()
    files, failed = asked.files or find_files(), []
    import_once()
    with tempfile.TemporaryDirectory(prefix="vocabx-") as scratch:
        for path, status in finished(files, ["-m", "not slow"], asked.at_once, Path(scratch)):
            if status not in (0, NO_TEST):
                failed.append(path)
                print((Path(scratch) / str(files.index(path))).read_text(encoding="utf-8", errors="replace"))
                print(f"{path} does not pass alone (status {status})\n", flush=True)
    print(f"{len(files)} files, each by itself: {len(failed)} failed", *failed, sep="\n  ")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
