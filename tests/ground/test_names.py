"""Names of variants: spelled for legends and tables."""

import pytest

from vocabx_utils import thesis
from vocabx_utils.names import published_label, variant_label


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("mean_kl_last", "mean init, KL (last)"),
        ("mean_kl_last_ce0.3", "mean init, KL (last) + 0.3 CE"),
        ("mean_kl_last_t2", "mean init, KL (last, temperature 2)"),
        ("mean_kl_last_ce0.3_t2", "mean init, KL (last, temperature 2) + 0.3 CE"),
        ("random_untrained", "random init, untrained"),
        ("base", "base model"),
        ("mean_kl_last_no_a", "mean init, KL (last), without stage a"),
        ("base_full", "base model, full fine-tuning"),
        ("tuned_mean_ce_full", "mean init, CE, full fine-tuning"),
        ("tuned_mean_kl_last", "mean init, KL (last), fine-tuned"),
    ],
)
def test_variant_labels(name: str, label: str) -> None:
    assert variant_label(name) == label


def test_the_thesis_does_not_say_at_which_subtoken_its_kl_is_taken() -> None:
    assert [published_label(row.variant) for row in thesis.RESULTS[-2:]] == ["mean init, CE", "mean init, KL"]
