"""What a verdict on a claim of the thesis is, and how it is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from vocabx_utils.intervals import UNSEEN, Answer, Interval, judge_all, word_of
from vocabx_utils.thesis import CLAIMS

NAMES = {
    "C1": "KL rises under CE",
    "C2": "final CE depends on first values, not on the objective",
    "C3": "under KL, random rows end with the lower validation KL",
    "C4": "KL favours the first subtoken, CE the last",
    "C5": "mean rows keep their cosine to their subtokens",
    "C6": "few coordinates carry the meaning",
    "C7": "phase 1 gives a better start (bits per byte of held-out texts)",
    "C8": "Stage a is necessary",
    "C9": "LoRA beats sequential full fine-tuning and forgets less",
    "C10": "init and objective interact",
    "C11": "loss is a poor proxy",
    "C12": "KL's signal weakens as the share of new tokens grows",
    "C13": "the one-forward scheme halves the time",
    "C14": "CE suits short completion, KL open-ended tasks",
    "C15": "DS-1000 is densest in new tokens",
    "C16": "models fail by prose instead of code",
    "C17": "temperature and a CE share help together",
}
RULES = {
    "C1": "under CE, pooled KL at the end over that at the start is above 1, from mean rows and from random rows",
    "C2": "once CE has levelled off, it differs more between two inits of one objective than between two objectives",
    "C3": "once KL has levelled off, that on validation texts, random over mean, is below 1",
    "C4": "from random starts the cosine to the first gains more than that to the last under KL, and less under CE",
    "C5": "from mean starts, under CE and KL, the mean cosine to both end subtokens stays within a tenth of its start",
    "C6": "from random starts, the tenth of the coordinates that changed most keeps 90 % of the gain in KL",
    "C7": "right after phase 1, bits per byte are below those of the better untrained start, for each objective",
    "C8": "after as many steps, bits per byte of domain texts are lower with stage a than without",
    "C9": "after as many steps, LoRA has fewer bits per byte than full fine-tuning on every set of texts",
    "C10": "(mean KL - random KL) - (mean CE - random CE) in pass rate is above 0",
    "C11": "the rank correlation of loss and pass rate over variants is above -0.5",
    "C12": "the share of KL that training removes falls as new tokens grow more frequent, if all were trained",
    "C13": "the time of a step with one forward pass over that of one with two is below 0.6",
    "C14": "mean CE passes more of DS-1000 than mean KL, and less of BigCodeBench",
    "C15": "DS-1000's share of new tokens is above that of every other benchmark",
    "C16": "in every model, answers without code are more than half of those and any other class of failure",
    "C17": "both together end below either and neither, in bits per byte and in KL",
}
"""Claims in a few words, and what has to hold for each to be confirmed."""
_AGREEMENT = {
    "confirmed": "Agrees with the thesis",
    "not confirmed": "Does not agree with the thesis",
    "cannot tell": "This run cannot tell",
    "not measured": "Not measured in this run",
}


@dataclass(frozen=True)
class Verdict:
    """What measured numbers say about one claim of the thesis."""

    claim: str  # its number, `C1` to `C17`
    answer: Answer  # "cannot tell" wherever an interval holds both answers, or nothing was measured
    reason: str  # the numbers in words, each with its interval and sample
    effects: Mapping[str, Interval] = field(default_factory=dict)  # those numbers by what they belong to
    parts: Mapping[str, Answer] = field(default_factory=dict)  # an answer for each, where a claim has several parts

    @property
    def name(self) -> str:
        """The number and a few words."""
        return f"{self.claim} {NAMES[self.claim]}"

    @property
    def rule(self) -> str:
        """What has to hold for the claim to be confirmed."""
        return RULES[self.claim]

    @property
    def measured(self) -> bool:
        """Whether there was anything that the rule asks for, if only one run."""
        return not self.reason.startswith(UNSEEN)

    @property
    def word(self) -> str:
        """The answer as every table and box tells it: `not measured` where there was nothing to judge."""
        return word_of(self.answer, self.reason)

    def __str__(self) -> str:
        return f"{self.name}: {self.word.upper()}\n   {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return what is written beside results; limits of an interval that are not finite are None.

        >>> found = Verdict("C6", "cannot tell", "one run", {"random_ce": Interval(0.5, -math.inf, math.inf)})
        >>> found.to_dict()["effects"]
        {'random_ce': {'estimate': 0.5, 'low': None, 'high': None}}
        >>> Verdict.from_dict(found.to_dict()) == found
        True
        """
        effects: dict[str, dict[str, Any]] = {}
        for name, found in self.effects.items():
            limits = {"estimate": found.estimate, "low": found.low, "high": found.high}
            # six digits are the same on every machine, and more than any of these numbers carries
            effects[name] = {key: float(f"{v:.6g}") if math.isfinite(v) else None for key, v in limits.items()}
            if name in self.parts:
                effects[name]["answer"] = self.parts[name]
        told = {"claim": self.name, "answer": self.answer, "reason": self.reason, "rule": self.rule}
        return {**told, "effects": effects}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Verdict:
        """Read what `to_dict` returned.

        Raises:
            ValueError: no claim of the thesis, or no answer that a rule gives.
        """
        claim, answer = str(content.get("claim", "")).split(" ")[0], cast(Answer, content.get("answer"))
        if claim not in RULES or answer not in get_args(Answer):
            raise ValueError(f"expected a claim from C1 to C17 and one of {get_args(Answer)}, got {dict(content)}")
        effects = content.get("effects", {})
        intervals = {name: Interval(*(_limit(found, key) for key in _LIMITS)) for name, found in effects.items()}
        parts = {name: found["answer"] for name, found in effects.items() if "answer" in found}
        return cls(claim, answer, str(content.get("reason", "")), intervals, parts)


_LIMITS = {"estimate": math.nan, "low": -math.inf, "high": math.inf}  # what None stands for


def _limit(found: Mapping[str, Any], key: str) -> float:
    return _LIMITS[key] if found[key] is None else float(found[key])


def unseen(claim: str, what: str) -> Verdict:
    """Return the verdict where nothing was measured."""
    return Verdict(claim, "cannot tell", UNSEEN + what)


def signed(interval: Interval, sign: int) -> Interval:
    """Return the interval of the value times 1 or -1."""
    return interval if sign > 0 else Interval(-interval.estimate, -interval.high, -interval.low)


def told(interval: Interval, n: int, sample: str) -> str:
    """Spell an interval and its sample; without an interval say so.

    >>> told(Interval(0.5, 0.4, 0.6), 12, "tokens")
    '0.500 [0.400, 0.600], n = 12 tokens'
    """
    if n == 1:
        return f"{interval.estimate:.3f} (one run, no interval)"
    if not math.isfinite(interval.high - interval.low):
        return f"{interval.estimate:.3f} (n = {n} {sample}, too few for an interval)"
    return f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}], n = {n} {sample}"


def spelled(texts: Mapping[str, str], answers: Mapping[str, Answer]) -> str:
    """Join what is said of the parts of a claim; where their answers differ each names its own.

    >>> spelled({"a": "a 1.2", "b": "b 0.9"}, {"a": "confirmed", "b": "cannot tell"})
    'a 1.2 (confirmed); b 0.9 (cannot tell)'
    """
    differ = len(set(answers.values())) > 1
    return "; ".join(f"{text} ({answers[name]})" if differ else text for name, text in texts.items())


def of_parts(
    claim: str,
    before: str,
    texts: Mapping[str, str],
    effects: Mapping[str, Interval],
    parts: Mapping[str, Answer],
    behind: str = "",
) -> Verdict:
    """Return the verdict on a claim whose parts all have to hold, with what is said of each between two other texts."""
    return Verdict(claim, judge_all(list(parts.values())), f"{before}{spelled(texts, parts)}{behind}", effects, parts)


def box(verdicts: Sequence[Verdict]) -> str:
    """Spell verdicts as a Markdown table: what the thesis says, our rule, what we see."""
    head = "| claim | what the thesis says | confirmed if | verdict | what we see |\n| --- | --- | --- | --- | --- |\n"
    rows = (f"| {v.claim} | {CLAIMS[v.claim]} | {v.rule} | **{v.word}** | {v.reason} |" for v in verdicts)
    return head + "\n".join(rows)


def agreement(verdicts: Sequence[Verdict]) -> str:
    """Say plainly what agrees with the thesis, what does not, what is open, and what was not measured, if anything.

    Each is an entry of a Markdown list, with its claims as a list below it.
    """
    lines = []
    for answer, words in _AGREEMENT.items():
        claims = [f"    - {v.claim}: {CLAIMS[v.claim]}" for v in verdicts if v.word == answer]
        if claims:
            lines += [f"- **{words}:**", *claims]
        elif answer != "not measured":
            lines.append(f"- **{words}:** nothing.")
    return "\n".join(lines)
