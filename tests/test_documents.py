"""README, workflow and hooks name only what exists."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import click
import yaml
from click.testing import CliRunner

from vocabx_utils.cli import COMMANDS, main
from vocabx_utils.paths import STAGES

ROOT = Path(__file__).resolve().parents[1]
SNAKEFILE = ROOT / "workflow" / "Snakefile"


def documents() -> dict[Path, str]:
    """Markdown text of the pages and notebooks."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = {path: path.read_text(encoding="utf-8") for path in pages}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found[path] = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return found


def test_links_and_pictures_lead_to_files_that_are_there() -> None:
    broken = []
    for path, text in documents().items():
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            local = target.split("#")[0]
            if local and "://" not in local and not (path.parent / local).exists():
                broken.append(f"{path.name}: {target}")
    assert broken == []


def test_links_to_a_cell_name_one_that_is_there() -> None:
    """JupyterLab opens a notebook at a cell more surely than at a heading."""
    targets = {
        (path.parent / notebook, cell)
        for path, text in documents().items()
        for notebook, cell in re.findall(r"\]\(([^)\s#]+\.ipynb)#cell-id=([^)\s]+)\)", text)
    }
    known = {
        path: {cell["id"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]} for path, _ in targets
    }
    assert targets
    assert [(path.name, cell) for path, cell in targets if cell not in known[path]] == []


def test_pictures_have_alternative_text() -> None:
    short = [alt for text in documents().values() for alt in re.findall(r"!\[([^\]]*)\]", text) if len(alt) < 20]
    assert short == []


def test_readme_names_make_targets_and_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    assert set(re.findall(r"\bmake ([a-z][a-z-]+)\b", readme + contributing)) <= targets
    lines = re.findall(r"^(vocabx [^#\n]*)", readme, flags=re.M)
    assert lines
    for line in lines:
        words = shlex.split(line)[1:]
        assert words[0] in COMMANDS, line
        options = [word for word in words if word.startswith("-")]
        group = isinstance(main.get_command(click.Context(main), words[0]), click.Group)
        help_text = CliRunner().invoke(main, [*words[: 1 + group], "--help"]).output
        assert all(option in help_text for option in options), line


def test_readme_lists_every_notebook() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [stage for stage in STAGES if f"notebooks/{stage}.ipynb" not in readme] == []


def test_the_workflow_calls_the_command_with_options_that_it_has() -> None:
    text = SNAKEFILE.read_text(encoding="utf-8").split("shell:")[1]
    options = CliRunner().invoke(main, ["run-notebook", "--help"]).output
    named = set(re.findall(r"(?<= )--[a-z][a-z-]*", text))
    assert {"--replace", "--gpus", "--jobs-per-gpu"} <= named
    assert [option for option in named if option not in options] == []


def test_profiles_of_the_workflow_are_yaml_and_name_rules_that_it_has() -> None:
    for path in (ROOT / "workflow" / "profiles").glob("*/config.yaml"):
        text = path.read_text(encoding="utf-8")
        assert isinstance(yaml.safe_load(text), dict)
        assert set(re.findall(r"notebook_(\w+)", text)) <= set(STAGES)


def test_hooks_are_local_and_call_what_is_there() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    scripts = [word for hook in hooks for word in hook["entry"].split() if word.endswith(".py")]
    assert scripts
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_ci_runs_lint_and_tests() -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make lint" in text
    assert "make test" in text
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], capture_output=True).returncode == 0
