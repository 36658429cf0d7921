"""The options and the sizes that follow from them."""

from __future__ import annotations

from typing import Any

import pytest

from vocabx_utils.adaptation.settings import AdaptSettings, sizes_of


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "n is 0; expected 1 or more"),
        ({"strategy": "added"}, "strategy is 'added'"),
        ({"objective": "kl_middle"}, "objective 'kl_middle'"),
        ({"objective": "untrained"}, "objective 'untrained': expected ce"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"held_out": 0.5}, "a share above 0 and below 0.5"),
        ({"tokens": 3}, "unknown tokens"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptSettings.from_params(**wrong)


def test_the_key_leaves_out_how_it_is_computed() -> None:
    settings = AdaptSettings(glob="*.c", device="cpu")
    assert settings.key() == AdaptSettings().key() != AdaptSettings(seed=1).key()


def test_sizes_follow_the_device_and_what_was_asked_for() -> None:
    settings = AdaptSettings(n=100, windows_per_token=20, held_out_bytes=5)
    cpu, gpu = sizes_of(settings, False), sizes_of(AdaptSettings(), True)
    assert cpu.train_windows == 2000 and cpu.held_out_bytes == 5 and cpu.sweep_windows <= 256
    assert gpu.train_windows == 800 * 32 and gpu.max_epochs > cpu.max_epochs
    assert sizes_of(AdaptSettings(n=1), False).train_windows == 64
