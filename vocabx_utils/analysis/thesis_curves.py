"""Curves that the thesis prints as coordinates: cosines of the new rows and losses of sequential fine-tuning.

The other curves of the thesis (phase 1 and LoRA losses) are not among its sources, so only their axis limits
are known; see `thesis.AXES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["COSINE_CURVES", "SEQUENTIAL_LOSSES", "CosineCurve", "SequentialCurve"]


@dataclass(frozen=True)
class CosineCurve:
    """Mean cosine of the new rows to one of their subtokens, by epoch of phase 1, from random initial rows.

    Attributes:
        label: LaTeX label of the figure.
        matrix: which matrix the rows belong to.
        objective: loss of the *input* rows. Head rows learn by cross-entropy in both cases.
        position: which subtoken; `intermediate` is the mean over inner subtokens (tokens of three or more).
        cosine: one value for each epoch, epoch 0 (before training) first.
    """

    label: str
    matrix: Literal["input", "head"]
    objective: Literal["kl", "ce"]
    position: Literal["first", "intermediate", "last"]
    cosine: tuple[float, ...]

    @property
    def epochs(self) -> tuple[int, ...]:
        """Epochs of `cosine`, 0 first."""
        return tuple(range(len(self.cosine)))


@dataclass(frozen=True)
class SequentialCurve:
    """Loss by epoch in sequential full fine-tuning (mean cross-entropy per token, nats).

    Attributes:
        label: LaTeX label of the figure.
        variant: `base` (no new tokens), or the phase-1 variant that was fine-tuned.
        split: `train` or `validation`.
        epochs: with new tokens, epochs 1-4 train embedding and head, 5 the first half of the blocks, 6 the
            second half. The base model has the last two only.
        loss: one value for each epoch.
    """

    label: str
    variant: Literal["base", "mean_ce", "mean_kl_first"]
    split: Literal["train", "validation"]
    epochs: tuple[int, ...]
    loss: tuple[float, ...]


# fmt: off
COSINE_CURVES: tuple[CosineCurve, ...] = (
    CosineCurve(
        "fig:embedding_similarity", "input", "kl", "first",
        (
            0.00056535634, 0.01670545, 0.046268243, 0.061200596, 0.06725986, 0.06972933, 0.07052365,
            0.07071451, 0.07075828, 0.07137306, 0.07191613, 0.071994826, 0.07198474,
        ),
    ),
    CosineCurve(
        "fig:embedding_similarity", "input", "kl", "intermediate",
        (
            0.0010031206585498977, 0.007886484065280435, 0.013098017453087559, 0.016131679231295555,
            0.018447284189309795, 0.019249914715805186, 0.019305175602511, 0.019518090382582325,
            0.019539272084821487, 0.020025659858345472, 0.01997504821823289, 0.019996132609305967,
            0.020009008139885705,
        ),
    ),
    CosineCurve(
        "fig:embedding_similarity", "input", "kl", "last",
        (
            0.00076339365, 0.009277457, 0.020059114, 0.025474334, 0.028253485, 0.029328804, 0.029791417,
            0.030028269, 0.030066615, 0.030582085, 0.03108529, 0.031227667, 0.031268325,
        ),
    ),
    CosineCurve(
        "fig:embedding_similarity", "input", "ce", "first",
        (
            0.00056535634, 0.0027978697, 0.009529331, 0.014691683, 0.016751116, 0.018077236, 0.0184654,
            0.018612541, 0.018627556, 0.019006161, 0.01927732, 0.019369798, 0.01937251,
        ),
    ),
    CosineCurve(
        "fig:embedding_similarity", "input", "ce", "intermediate",
        (
            0.0010031206585498977, 0.005274525136580148, 0.005685454156870644, 0.0057796715804236546,
            0.005642794416856085, 0.006295786827639409, 0.006509009814264531, 0.006609379952832328,
            0.006619187025085691, 0.006766016672006755, 0.006754113682050622, 0.006823423310536249,
            0.006826085981179628,
        ),
    ),
    CosineCurve(
        "fig:embedding_similarity", "input", "ce", "last",
        (
            0.00076339365, 0.008078774, 0.01561947, 0.019558191, 0.021674216, 0.022784853, 0.023322973,
            0.023507671, 0.02353283, 0.02385881, 0.0242174, 0.024310885, 0.02432322,
        ),
    ),
    CosineCurve(
        "fig:head_similarity", "head", "ce", "first",
        (
            0.00017873052, 0.03775822, 0.07361488, 0.089767955, 0.09729063, 0.100483075, 0.101578705,
            0.1018784, 0.101905726, 0.10446524, 0.1060419, 0.10643549, 0.10646778,
        ),
    ),
    CosineCurve(
        "fig:head_similarity", "head", "ce", "intermediate",
        (
            -0.00020895857195337783, 0.008932775616509995, 0.015117165708985318, 0.01740408577854563,
            0.01821888561411386, 0.01850627009668548, 0.018507341482615014, 0.018485073459163393,
            0.01847073245420918, 0.01888068056539579, 0.01905157277594727, 0.019072461687630556,
            0.01906286753231028,
        ),
    ),
    CosineCurve(
        "fig:head_similarity", "head", "ce", "last",
        (
            -0.0011045927, 0.011135558, 0.020283313, 0.024099207, 0.025771985, 0.026386071, 0.026540367,
            0.026555186, 0.026548065, 0.027239077, 0.027633661, 0.02769506, 0.027690062,
        ),
    ),
    CosineCurve(
        "fig:head_similarity", "head", "kl", "first",
        (
            0.00017873052, 0.039489135, 0.08224825, 0.103158414, 0.11302103, 0.117454365, 0.11922648,
            0.11972436, 0.119781286, 0.1228162, 0.12479725, 0.125358, 0.12541807,
        ),
    ),
    CosineCurve(
        "fig:head_similarity", "head", "kl", "intermediate",
        (
            -0.00020895857195337783, 0.010807843049071546, 0.022526730789974247, 0.02862519458211937,
            0.03146885121415166, 0.03277591149518052, 0.0332995510537006, 0.033438342628765036,
            0.033455082812164534, 0.03428741389264663, 0.034853121974965796, 0.03502108164174461,
            0.03503836907483852,
        ),
    ),
    CosineCurve(
        "fig:head_similarity", "head", "kl", "last",
        (
            -0.0011045927, 0.012915728, 0.026944151, 0.033410598, 0.036480352, 0.037750684, 0.038232833,
            0.038355503, 0.038369346, 0.039234683, 0.039787646, 0.039928555, 0.03994147,
        ),
    ),
)

SEQUENTIAL_LOSSES: tuple[SequentialCurve, ...] = (
    SequentialCurve(
        "fig:sequential_finetune", "mean_ce", "train",
        (1, 2, 3, 4, 5, 6),
        (
            0.5988806884765625, 0.57897607421875, 0.5692543212890625, 0.5625922607421875,
            0.5375560180664063, 0.3880338134765625,
        ),
    ),
    SequentialCurve(
        "fig:sequential_finetune", "mean_kl_first", "train",
        (1, 2, 3, 4, 5, 6),
        (
            0.6237598388671876, 0.5933748291015625, 0.580024462890625, 0.571891796875, 0.5372623779296875,
            0.38918896789550783,
        ),
    ),
    SequentialCurve(
        "fig:sequential_finetune", "base", "train",
        (1, 2),
        (
            0.5071235168457031, 0.3641757652282715,
        ),
    ),
    SequentialCurve(
        "fig:sequential_finetune", "mean_ce", "validation",
        (0, 1, 2, 3, 4, 5, 6),
        (
            0.6280281982421875, 0.594512451171875, 0.583063720703125, 0.57691259765625, 0.572529296875,
            0.5312041625976562, 0.5494957733154296,
        ),
    ),
    SequentialCurve(
        "fig:sequential_finetune", "mean_kl_first", "validation",
        (0, 1, 2, 3, 4, 5, 6),
        (
            0.6680211181640625, 0.611709716796875, 0.5949635009765625, 0.58625, 0.5810255126953126,
            0.5317838745117187, 0.5475254211425781,
        ),
    ),
    SequentialCurve(
        "fig:sequential_finetune", "base", "validation",
        (0, 1, 2),
        (
            0.5536316528320312, 0.4948560333251953, 0.5149693984985352,
        ),
    ),
)
# fmt: on
