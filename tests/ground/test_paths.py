"""Names of stages."""

import pytest

from vocabx_utils import paths


@pytest.mark.parametrize("name", ["8", "phase1", "3_", "03_phase"])
def test_unknown_stage_is_refused(name):
    with pytest.raises(ValueError, match="No notebook"):
        paths.stage_name(name)


def test_stage_names_in_every_spelling():
    assert {paths.stage_name(n) for n in ("3", "03", "03_phase1_training")} == {"03_phase1_training"}
    assert paths.stage_name("0") == "00_start"
