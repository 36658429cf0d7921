"""Progress in a log."""

from vocabx_utils.progress import progress


def test_plain_progress_prints_lines_not_carriage_returns(capsys):
    with progress(total=3, desc="steps") as bar:
        for _ in range(3):
            bar.update()
    captured = capsys.readouterr().err
    assert "steps: 100%" in captured
    assert "\r" not in captured


def test_progress_prints_plain_lines_where_nobody_watches(capsys):
    """B62: no carriage returns in logs and notebook files; speed and what was told stand in the line."""
    bar = progress(range(40), desc="mean_ce", unit="step")
    for number in bar:
        bar.set_postfix_str(f"loss {number / 10:.1f}, 900 tokens/s", refresh=False)
    seen = capsys.readouterr().err
    lines = [line for line in seen.splitlines() if line.strip()]
    assert len(lines) == 1 and "\r" not in seen
    assert lines[0].startswith("mean_ce: 100%") and "40/40" in lines[0] and "loss 3.9, 900 tokens/s" in lines[0]
