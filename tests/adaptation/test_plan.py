"""What is announced, from the configuration alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vocabx_utils import folders
from vocabx_utils.adaptation.plan import check_space, plan_for, read_shape
from vocabx_utils.adaptation.settings import AdaptSettings, sizes_of
from vocabx_utils.gguf import ModelError
from vocabx_utils.models import BaseModel


def test_the_shape_is_that_of_the_loaded_model(tiny_folder: Path, tiny_base: BaseModel) -> None:
    shape = read_shape(str(tiny_folder), "cpu", "float32")
    assert shape.parameters == sum(p.numel() for p in tiny_base.model.parameters())  # untied, as it is loaded
    assert (shape.rows, shape.width, shape.layers, shape.item) == (tiny_base.rows, tiny_base.width, 2, 4)
    with pytest.raises(ModelError, match="not a folder"):
        read_shape("/nowhere/at/all", "cpu", "auto")


def test_estimates_grow_with_what_is_asked_for(tiny_folder: Path, tmp_path: Path) -> None:
    shape = read_shape(str(tiny_folder), "cpu", "float32")
    small, large, tuned = (
        plan_for(shape, asked, sizes_of(asked, False))
        for asked in (AdaptSettings(n=64), AdaptSettings(n=800), AdaptSettings(n=800, fine_tune="lora"))
    )
    assert small.memory < large.memory < tuned.memory and small.disk < large.disk <= tuned.disk
    assert small.tokens_per_epoch == 64 * 8 * 48
    line = small.tell(tmp_path, shape.device, 5e9)
    assert "GB at the peak" in line and "24,576 tokens" in line and "5 GB are free" in line


def test_what_the_teacher_reads_at_once_on_a_card_is_announced(tiny_folder: Path) -> None:
    shape, asked = read_shape(str(tiny_folder), "cpu", "float32"), AdaptSettings(n=64)
    sizes = sizes_of(asked, True)
    plans = [plan_for(replace(shape, device=torch.device(kind)), asked, sizes).memory for kind in ("cuda", "cpu")]
    # 512 windows of 48 tokens in one pass instead of 8,192 tokens at once; a process has its libraries besides
    assert plans[0] - (plans[1] - 1e9) == pytest.approx((512 * 48 - 8192) * shape.width * 28 * 4)


def test_a_full_disk_is_told_before_anything_is_written(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = AdaptSettings()
    plan = plan_for(read_shape(str(tiny_folder), "cpu", "auto"), asked, sizes_of(asked, False))
    assert check_space(plan, tmp_path / "out") > 0
    monkeypatch.setattr(folders, "MARGIN", 1 << 60)
    with pytest.raises(folders.SpaceError, match="give an --out on another disk"):
        check_space(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()
