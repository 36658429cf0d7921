"""The list of slow tests names tests that exist, and is made from a report's times."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import mark_slow
import pytest

ROOT = Path(__file__).resolve().parents[1]


@cache
def functions(path: Path) -> set[str]:
    """Names of all functions of a module; none where there is no such file."""
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_listed_test_exists() -> None:
    missing = []
    for line in mark_slow.LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        module, function = line.split("::")
        if function not in functions(ROOT / f"{module.replace('.', '/')}.py"):
            missing.append(line)
    assert missing == []


def test_the_cases_of_a_function_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="test_x[1]" time="0.3"/>'
        '<testcase classname="tests.a" name="test_x[2]" time="0.3"/>'
        '<testcase classname="tests.a" name="test_y" time="0.2"/></testsuite></testsuites>'
    )
    monkeypatch.setattr(mark_slow, "LIST", tmp_path / "list.txt")
    mark_slow.main(str(report))
    assert (tmp_path / "list.txt").read_text().splitlines()[1:] == ["tests.a::test_x"]
    (tmp_path / "list.txt").write_text("# head\ntests.a::test_y\ntests.b::test_of_another_report\n")
    mark_slow.main(str(report))
    assert (tmp_path / "list.txt").read_text().splitlines()[1:] == [
        "tests.a::test_x",
        "tests.b::test_of_another_report",
    ]


def test_the_marker_is_put_on(request: pytest.FixtureRequest) -> None:
    listed = mark_slow.LIST.read_text(encoding="utf-8").splitlines()
    for item in request.session.items:
        module = item.nodeid.split("::")[0].removesuffix(".py").replace("/", ".")
        name = f"{module}::{item.name.split('[')[0]}"
        assert bool(item.get_closest_marker("slow")) == (name in listed), name
