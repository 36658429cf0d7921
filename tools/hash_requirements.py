"""Write the hash of every wheel beside its pin in the requirement files of the evaluation environments.

    python3.11 tools/hash_requirements.py vocabx_utils/evaluation/requirements/*.txt

Run it with CPython 3.11 on x86-64 Linux after a version was changed: pip names the file that it would install
there, and that file's hash. PyTorch's must come from its CPU index (`PIP_EXTRA_INDEX_URL`); of the other packages
the file is that of the package index.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def pins(path: Path) -> list[str]:
    """Return the lines of a requirement file without their hashes; comments stay."""
    return [line.partition(" --hash=")[0].rstrip() for line in path.read_text(encoding="utf-8").splitlines()]


def pip_report(lines: list[str]) -> list[dict[str, Any]]:
    """Ask pip which files it would install."""
    with tempfile.TemporaryDirectory() as folder:
        plain, report = Path(folder, "plain.txt"), Path(folder, "report.json")
        plain.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = ["--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", str(report)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, "-r", str(plain)], check=True)
        return list(json.loads(report.read_text(encoding="utf-8"))["install"])


def canonical(name: str) -> str:
    """Return the name as the package index compares it."""
    return name.lower().replace("_", "-").replace(".", "-")


def main() -> None:
    """Rewrite the files named on the command line."""
    for path in map(Path, sys.argv[1:]):
        lines = pins(path)
        found = {
            canonical(item["metadata"]["name"]): item["download_info"]["archive_info"]["hashes"]["sha256"]
            for item in pip_report(lines)
        }
        hashed = [
            line if line.startswith("#") else f"{line} --hash=sha256:{found[canonical(line.partition('==')[0])]}"
            for line in lines
        ]
        path.write_text("\n".join(hashed) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
