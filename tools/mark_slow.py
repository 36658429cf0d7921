"""Write the list of slow tests, which `make fast` leaves out, from a report of the suite or of a part of it.

python -m pytest tests --junitxml report.xml
python tools/mark_slow.py report.xml [SECONDS]

A test function is slow if its cases together, with set-up and clean-up, take SECONDS (0.5 by default) or more. What the
report does not hold stays as it is listed. What several tests share is counted where it is made first, so a report of
the tests that are left (`-m "not slow"`) shows what moved on to another one.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

LIST = Path(__file__).resolve().parents[1] / "tests" / "slow_tests.txt"
HEAD = "# Test functions that the marker `slow` is put on; written by tools/mark_slow.py from a measured run.\n"


def function_seconds(report: Path) -> dict[str, float]:
    """Seconds of each test function, all cases together, by `folder.module::function`."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.attrib['classname']}::{case.attrib['name'].split('[')[0]}"
        seconds[name] += float(case.attrib["time"])
    return dict(seconds)


def main(report: str, limit: str = "0.5") -> None:
    """Write the list and say what is left for `make fast`."""
    seconds = function_seconds(Path(report))
    listed = LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []
    kept = {name for name in listed if name not in seconds and not name.startswith("#")}
    slow = sorted(kept | {name for name, taken in seconds.items() if taken >= float(limit)})
    LIST.write_text(HEAD + "".join(f"{name}\n" for name in slow), encoding="utf-8")
    print(f"{len(slow)} test functions are slow; {len(seconds)} were measured")


if __name__ == "__main__":
    main(*sys.argv[1:])
