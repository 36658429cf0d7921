"""The wheel holds everything that the package needs, and works where no checkout is in sight."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from forked import run_forked
from wheel_worker import call_command, open_front_door

ROOT = Path(__file__).resolve().parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
UNSET = ("VOCABX_ROOT", "VOCABX_RUNS", "VOCABX_DATA")


def pip(*words: str) -> None:
    """Run pip of this environment, without a network."""
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, so that nothing is left in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "vocabx_utils", source / "vocabx_utils", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", str(source), "--no-build-isolation", "--wheel-dir", str(out))
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel is installed into; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", str(wheel), "--target", str(folder))
    return folder


def vocabx(site: Path, here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command in an empty folder, with a cache that is empty too."""
    env = {name: value for name, value in os.environ.items() if name not in UNSET}
    env |= {"PYTHONPATH": str(site), **settings(here)}
    command = [sys.executable, "-P", "-m", "vocabx_utils", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=here, env=env)


def settings(here: Path) -> dict[str, str]:
    return {"VOCABX_CACHE": str(here / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    files = [path for path in (ROOT / "vocabx_utils").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert names == {path.relative_to(ROOT).as_posix() for path in files}
    assert {".py", ".json", ".txt", ".jinja", ".yaml"} <= {Path(name).suffix for name in names}


def test_the_installed_command_says_what_is_there(site: Path, tmp_path: Path) -> None:
    commit = ["-c", "user.name=x", "-c", "user.email=x@y.z", "commit", "-q", "--allow-empty", "-m", "not the package's"]
    for words in (["init", "-q"], commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert vocabx(site, tmp_path, "--version").stdout.split()[-1] == VERSION
    assert "Commands:" in vocabx(site, tmp_path, "--help").stdout
    info = vocabx(site, tmp_path, "info")
    assert info.returncode == 0, info.stderr
    assert str(ROOT) not in info.stdout.replace(sys.prefix, "")
    assert "need a checkout (VOCABX_ROOT)" in info.stdout
    assert re.search(r"git revision +none", info.stdout)
    listed = vocabx(site, tmp_path, "models", "list")
    assert listed.returncode == 0 and "smollm2-135m" in listed.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run",), "run from a checkout, or set VOCABX_ROOT to one"),
        (("lab",), "run from a checkout, or set VOCABX_ROOT to one"),
        (("run", "--profile", "gpu"), "run from a checkout, or set VOCABX_ROOT to one"),
        (("figures", "quick"), "There is no run 'quick'"),
        (("export", "nothing", "out"), "nothing is not a variant"),
        (("tokens", "audit", "nothing", "--from", "."), "nothing"),
    ],
)
def test_what_needs_more_than_the_wheel_says_so_in_one_line(
    site: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    here, log = tmp_path / "here", tmp_path / "log"
    here.mkdir()
    [status] = run_forked(call_command, site, here, list(words), log=log, environment=settings(here), unset=UNSET)
    assert status > 0
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("Error: ")]
    assert said in line


def test_the_front_door_opens(site: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run_forked(open_front_door, site, tmp_path, log=log, environment=settings(tmp_path), unset=UNSET)
    assert f"opened: {site / 'vocabx_utils' / '__init__.py'} []\n" in log.read_text()


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}$", text, flags=re.M)
    assert released[0] == VERSION
    assert released == sorted(released, key=lambda version: tuple(map(int, version.split("."))), reverse=True)
