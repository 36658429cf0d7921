"""Parts of an adaptation that are done once and found again.

Each part has a folder `work/<name>-<digest>`, where the digest stands for everything that its result depends on. A part
that is finished has `done.json` in it; one that was stopped keeps what it left there, so that phase 1 goes on from its
checkpoint. With other settings the folder is another one: nothing is written over, and going back finds it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocabx_utils.files import digest, read_json, write_json
from vocabx_utils.runs import KeyMismatchError, differing
from vocabx_utils.training.loss_model import peak_bytes

STATE = "adapt.json"
WORK = "work"
MODEL = "model"
REPORT = "report.html"
SUMMARY = "summary.json"


class OutError(ValueError):
    """The folder to write holds something that this adaptation did not make."""


@dataclass(frozen=True)
class Part:
    """A finished part."""

    folder: Path  # its own
    result: dict[str, Any]  # what it found, JSON-ready
    seconds: float  # of the start that finished it
    peak: int  # bytes of memory at its end, see `loss_model.peak_bytes`
    digest: str  # stands for it in the keys of later parts


class Steps:
    """The parts of one adaptation, `total` of them, below its `work` folder; `tell` receives a line at each."""

    def __init__(self, folder: Path, tell: Callable[[str], None], total: int) -> None:
        self.folder, self.tell, self.total, self.begun = folder, tell, total, 0

    def once(self, name: str, title: str, key: Mapping[str, Any], make: Callable[[Path], Mapping[str, Any]]) -> Part:
        """Do a part, or read what it found when it was done before.

        The key holds all that the result depends on, JSON-ready. `make` does the work in the folder that it is given,
        which begins with `name`; what it returns is stored. `title` is said when it begins.
        """
        self.begun += 1
        title = f"{self.begun}/{self.total} {title}"
        known = digest(key)
        place = self.folder / f"{name}-{known}"
        done = place / "done.json"
        if done.exists():
            self.tell(f"{title}: done before, in {read_json(done)['seconds']:.0f} s")
        else:
            self.tell(f"{title}{' (going on)' if place.exists() else ''} …")
            place.mkdir(parents=True, exist_ok=True)
            write_json(place / "key.json", dict(key))
            start = time.perf_counter()
            result = dict(make(place))
            seconds = round(time.perf_counter() - start, 2)
            write_json(done, {"result": result, "seconds": seconds, "peak_bytes": peak_bytes()})
        found = read_json(done)
        return Part(place, found["result"], found["seconds"], found["peak_bytes"], known)


def open_out(out: Path, key: Mapping[str, Any]) -> bool:
    """Look at the folder to write; True where the same adaptation is finished there.

    Raises:
        OutError: it is no folder, or holds other things than an adaptation.
        KeyMismatchError: it holds a model that was made of another model, with other settings or of other texts.
    """
    if not out.exists():
        return False
    if not out.is_dir():
        raise OutError(f"{out} exists and is not a folder. Give another --out.")
    if not (out / STATE).exists():
        if not (out / WORK).is_dir() and any(out.iterdir()):
            raise OutError(f"{out} exists, is not empty and was not made by `vocabx adapt`. Give another --out.")
        return False
    if not (out / MODEL).is_dir():
        return False  # stopped before its model was written, or the model was removed: nothing can be lost
    held = read_json(out / STATE)["key"]
    if "model" in held:  # OUTs were once known by the name as it was typed
        raise KeyMismatchError(
            f"{out} holds a model that an earlier version of vocabx made of {held['model']!r}; it did not note the "
            f"files, so they cannot be compared. {out / MODEL} can be used as it is. Give another --out; or, where "
            f"{out / WORK} is still there, remove {out / STATE} to go on with it. Nothing was changed."
        )
    if held != key:
        raise KeyMismatchError(
            f"{out} holds a model that was made with other settings ({differing(held, key)}). Give another --out, or "
            f"remove {out}. Nothing was changed."
        )
    return (out / REPORT).exists() and (out / SUMMARY).exists()
