"""All claims in one table: the verdicts of a run folder, those kept in `results/claims`, and their Markdown."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vocabx_utils import files, paths
from vocabx_utils.claims.stored import judge_stored
from vocabx_utils.claims.verdict import NAMES, RULES, Verdict
from vocabx_utils.runs import Run, git_revision, read_provenance
from vocabx_utils.thesis import ALSO, CLAIMS

FILE = "verdicts.json"
"""What a notebook writes into the folder of its stage: a list of `Verdict.to_dict`."""


@dataclass(frozen=True)
class Setting:
    """What one setting says about the claims, such as the quick run."""

    name: str
    title: str  # heading of its column
    date: str  # of the work that was judged, or of the judging
    revision: str | None  # the same; None outside a checkout
    verdicts: Mapping[str, Verdict]  # by claim, in the claims' order

    def write(self, folder: Path) -> Path:
        """Write `NAME.json` into a folder, such as `results/claims`, and return its path."""
        path = folder / f"{self.name}.json"
        facts = {"setting": self.name, "title": self.title, "date": self.date, "revision": self.revision}
        verdicts = [verdict.to_dict() for verdict in self.verdicts.values()]
        files.write_json(path, facts | {"verdicts": verdicts})
        return path

    def answer(self, claim: str) -> str:
        """Say the verdict in a few words, with the parts that are decided where the whole is not.

        `not measured` where nothing was there to judge.
        """
        found = self.verdicts.get(claim)
        if not found or not found.measured:
            return "not measured"
        decided = [f"{part} {answer}" for part, answer in found.parts.items() if answer != "cannot tell"]
        return f"{found.answer} ({', '.join(decided)})" if decided and found.answer == "cannot tell" else found.answer


def collect(run: Run, title: str = "") -> Setting:
    """Collect the verdicts that the notebooks of a run have written; where two ask one claim, the later one counts.

    Raises:
        ValueError: a file holds something else than verdicts; the message names it.
    """
    found: dict[str, Verdict] = {}
    dates, revision = [], None
    for stage in paths.STAGES:
        path = run.folder / stage / FILE
        if not path.exists():
            continue
        found |= {verdict.claim: verdict for verdict in _read(path)}
        for sealed in sorted(path.parent.glob("**/provenance.json")):
            provenance = read_provenance(sealed.parent)
            dates.append(str(provenance["finished"])[:10])
            revision = provenance.get("git") or revision
    date = max(dates) if dates else _today()
    return Setting(run.name, title or f"{run.name} run", date, revision, _in_order(found))


def collect_stored(results: Path) -> Setting:
    """Judge what `results` keeps of measurements at full size, as the setting `large`."""
    found = {verdict.claim: verdict for verdict in judge_stored(results)}
    return Setting("large", "stored results", _today(), git_revision(), _in_order(found))


def collect_reproduction(results: Path) -> Setting:
    """Take over what the reproduction at half a billion parameters measured (`gpu/verdict.json`), as `reproduction`."""
    judged = map(Verdict.from_dict, files.read_json(results / "gpu" / "verdict.json")["claims"])
    found = {verdict.claim: verdict for verdict in judged if verdict.measured}
    return Setting("reproduction", "reproduction, tuned", _today(), git_revision(), _in_order(found))


def read_settings(folder: Path) -> list[Setting]:
    """Read the settings kept in a folder, such as `results/claims`: the quick run first, the others by name."""
    settings = []
    for path in sorted(folder.glob("*.json"), key=lambda path: (path.stem != "quick", path.stem)):
        held = files.read_json(path)
        verdicts = {verdict.claim: verdict for verdict in map(Verdict.from_dict, held["verdicts"])}
        settings.append(Setting(held["setting"], held["title"], held["date"], held["revision"], verdicts))
    return settings


def overview(settings: Sequence[Setting]) -> str:
    """Spell all claims as a Markdown table: what the thesis says, our rule, and the verdict of each setting."""
    heads = ["claim", "what the thesis says", "confirmed if", *(setting.title for setting in settings)]
    lines = [heads, ["---"] * len(heads)]
    for claim, said in CLAIMS.items():
        answers = [setting.answer(claim) for setting in settings]
        told = [f"**{answer}**" if answer.endswith("confirmed") else answer for answer in answers]
        lines.append([claim, said, RULES[claim], *told])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tell(claim: str, settings: Sequence[Setting]) -> str:
    """Spell one claim in full, as Markdown: what the thesis says and also says, our rule, and what each setting saw."""
    said = f"> **The text says:** {CLAIMS[claim]}" + (f" **And also:** {ALSO[claim]}" if claim in ALSO else "")
    lines = [f"**{claim} {NAMES[claim]}**", said, f"**Our rule.** Confirmed if {RULES[claim]}."]
    for setting in settings:
        reason = f": {setting.verdicts[claim].reason}" if claim in setting.verdicts else ""
        lines.append(f"- *{setting.title}* ({setting.date}): **{setting.answer(claim)}**{reason}")
    return "\n\n".join(lines)


def _read(path: Path) -> list[Verdict]:
    content = files.read_json(path)
    if isinstance(content, dict):  # as older runs of notebook 04 have it: by claim and by where it was measured
        content = [item for where, item in content.items() if where.endswith(", here")]
    try:
        return [Verdict.from_dict({"answer": item.get("outcome"), **item}) for item in content]  # so 05 named it
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{paths.show_path(path)} holds no list of verdicts: {error}") from error


def _in_order(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    return {claim: verdicts[claim] for claim in CLAIMS if claim in verdicts}


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
