"""The explorer's answers against direct computation, its HTML, and its widgets without a browser."""

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from fixtures.tiny_run import TinyRun, build_run

from vocabx_utils.analysis.divergence import PairedText
from vocabx_utils.analysis.explorer import Explorer
from vocabx_utils.analysis.explorer_view import Panel, view_html
from vocabx_utils.analysis.similarity import cosine
from vocabx_utils.files import read_tensors, write_tensors
from vocabx_utils.rows import read_histories, read_tokens


def decode(ids) -> str:
    return "".join(f"<{i}>" if i < 64 else f" tok{i - 64}" for i in ids)


def text() -> PairedText:
    original, extended = (1, 2, 3, 4, 5, 6), (1, 64, 4, 65)
    return PairedText(original, extended, np.array([[0, 0], [2, 1], [3, 2], [5, 3]]))


def explorer(tiny: TinyRun) -> Explorer:
    table = pd.DataFrame({"text": [0, 0, 0], "extended": [1, 2, 3], "token": [64, 4, 65], "kl": [0.5, 0.1, 0.7]})
    histories = read_histories(tiny.run)
    kl = {("mean_ce", 2): table}
    return Explorer(read_tokens(tiny.run), histories, tiny.original, decode, texts=[text()], kl_tables=kl)


def test_view_agrees_with_the_files(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    view = explorer(tiny).view("mean_ce", 3, 1, k=4)
    rows = read_tensors(tiny.run.folder / "03_phase1_training/mean_ce/rows/epoch_01.safetensors")["input_rows"]
    ids = list(tiny.subtokens[3])
    assert view.subtokens["id"].tolist() == ids
    assert view.subtokens["cosine"].tolist() == pytest.approx(cosine(rows[3], tiny.original["input"][ids]).tolist())
    everything = cosine(tiny.original["input"], rows[3])
    assert view.neighbours["id"].tolist() == np.argsort(-everything)[:4].tolist()
    others = [at for at in np.argsort(-cosine(rows, rows[3])) if at != 3][:4]
    assert view.new_neighbours["id"].tolist() == [64 + at for at in others]
    course = view.cosines.set_index(["position", "epoch"])["cosine"]
    assert course["first", 1] == pytest.approx(float(cosine(rows[3], tiny.original["input"][ids[0]])))
    assert len(course) == 9
    assert view.norm == pytest.approx(float(rows[3].norm()))
    assert not view.remarks


def test_occurrences_and_kl(tmp_path: Path) -> None:
    view = explorer(build_run(tmp_path)).view("mean_ce", 0, 2)
    [place] = view.occurrences
    assert (place.text, place.position, place.before, place.token, place.behind) == (0, 1, "<1>", " tok0", "<4> tok1")
    assert view.kl["kl"].tolist() == [0.5, 0.1, 0.7]
    assert view.kl["shown"].tolist() == [" tok0", "<4>", " tok1"]
    without = explorer(build_run(tmp_path, name="other")).view("mean_kl_last", 5, 2)
    assert without.kl.empty
    assert not without.occurrences
    shown = view_html(without)
    assert "not measured" in shown
    assert "not in the texts" in shown


def test_map_has_one_basis_for_all_epochs(tmp_path: Path) -> None:
    made = explorer(build_run(tmp_path))
    first, last, again = (made.view("mean_ce", 0, epoch).points for epoch in (0, 2, 2))
    pd.testing.assert_frame_equal(last, again)
    subtokens = first["kind"] == "subtoken"
    pd.testing.assert_frame_equal(first[subtokens], last[subtokens])  # they did not move; new rows did
    assert not np.allclose(first.loc[~subtokens, "x"], last.loc[~subtokens, "x"])
    assert (first["kind"] == "new").sum() == 12


def test_search_puts_beginnings_first(tmp_path: Path) -> None:
    made = explorer(build_run(tmp_path))
    assert made.search("TOK1") == [1, 10, 11]
    assert made.search("1")[:1] == [1]
    assert made.search("zzz") == []
    assert made.search("") == list(range(12))


def test_broken_rows_and_missing_epochs_are_said_not_raised(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, epochs=3)
    folder = tiny.run.folder / "03_phase1_training/mean_ce/rows"
    (folder / "epoch_02.safetensors").unlink()
    tensors = read_tensors(folder / "epoch_03.safetensors")
    tensors["input_rows"][0] = 0
    tensors["input_rows"][1, 4] = float("nan")
    write_tensors(folder / "epoch_03.safetensors", tensors)
    made = explorer(tiny)
    assert made.view("mean_ce", 5, 2).epoch == 1
    assert any("epoch 2" in remark for remark in made.view("mean_ce", 5, 2).remarks)
    for token in (0, 1):
        view = made.view("mean_ce", token, 3)
        assert view.neighbours.empty
        assert view.subtokens["cosine"].isna().all()
        assert "no direction" in view_html(view)
    with pytest.raises(ValueError, match="random_ce"):
        made.view("random_ce", 0, 0)
    with pytest.raises(ValueError, match="12 new tokens"):
        made.view("mean_ce", 12, 0)
    with pytest.raises(ValueError, match="at least one"):
        Explorer([], {}, tiny.original, decode)


def test_one_token_of_one_subtoken(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, n=1, variants=("mean_ce",))
    tokens = [replace(token, subtokens=token.subtokens[:1]) for token in read_tokens(tiny.run)]
    view = Explorer(tokens, read_histories(tiny.run), tiny.original, decode).view("mean_ce", 0, 1)
    assert any("one subtoken" in remark for remark in view.remarks)
    assert view.new_neighbours.empty
    assert "–" in view_html(view)


def test_html_escapes_token_texts(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    tokens = [replace(token, text="<script>alert(1)</script>") for token in read_tokens(tiny.run)]
    made = Explorer(tokens, read_histories(tiny.run), tiny.original, lambda ids: "<b>&", texts=[text()])
    shown = view_html(made.view("mean_ce", 0, 2))
    assert "<script" not in shown
    assert "<b>&<" not in shown
    assert "&lt;script&gt;" in shown


def panel(load: Callable[[str], Explorer], runs: Sequence[str] = ("a",), token: int = 0) -> SimpleNamespace:
    """The widgets of an explorer by name."""
    box = Panel(load, runs, token).box
    (run, variant), (search, token_box), (epoch, matrix) = (row.children for row in box.children[:3])
    found = {"run": run, "variant": variant, "search": search, "token": token_box, "epoch": epoch, "matrix": matrix}
    listed, restart, out = box.children[3:]
    return SimpleNamespace(box=box, out=out, listed=listed, restart=restart, **found)


def test_widget_reacts(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    loaded: list[str] = []

    def load(name: str) -> Explorer:
        loaded.append(name)
        return explorer(tiny)

    made = panel(load, ["a", "b"], token=2)
    assert loaded == ["a"]
    assert "·tok2" in made.out.value
    assert made.epoch.max == 2
    made.search.value = "tok11"
    assert made.token.value == 11
    assert "·tok11" in made.out.value
    before = made.out.value
    made.epoch.value = 0
    assert made.out.value != before
    assert "epoch 0" in made.out.value
    made.matrix.value = "head"
    assert "head row" in made.out.value
    made.variant.value = "mean_untrained"
    assert made.epoch.max == 0
    assert "untrained" in made.out.value
    made.run.value = "b"
    assert loaded == ["a", "b"]
    assert made.search.value == ""


def test_a_search_without_a_hit_is_said_and_the_next_one_recovers(tmp_path: Path) -> None:
    made = panel(lambda _: explorer(build_run(tmp_path)), token=3)
    made.search.value = "zzz"
    assert "no new token contains 'zzz'" in made.out.value
    assert 'class="vx-none"' in made.out.value
    assert made.token.options == ()
    made.variant.value = "mean_ce"  # a choice in between must not bring the old view back
    assert "no new token contains" in made.out.value
    made.search.value = "tok1"
    assert made.token.value == 1
    assert "·tok1<" in made.out.value
    assert "no new token" not in made.out.value
    made.search.value = "zzz"
    made.search.value = ""
    assert len(made.token.options) == 12
    assert "·tok0<" in made.out.value


def test_it_says_how_many_tokens_the_box_lists(tmp_path: Path) -> None:
    made = panel(lambda _: explorer(build_run(tmp_path, n=60)))
    assert len(made.token.options) == 50
    assert "lists 50 of the 60 tokens found" in made.listed.value
    made.search.value = "tok5"
    assert len(made.token.options) == 11
    assert "lists 11 of 60 new tokens, those that contain 'tok5'" in made.listed.value


def test_it_opens_where_kl_was_measured(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)  # of whose variants mean_ce alone has a KL
    made = panel(lambda _: explorer(tiny))
    assert made.variant.value == "mean_ce"
    assert 'class="vx-kl"' in made.out.value
    bare = Explorer(read_tokens(tiny.run), read_histories(tiny.run), tiny.original, decode)
    assert bare.preferred == "mean_kl_first"


def test_the_epoch_is_kept_past_an_untrained_variant(tmp_path: Path) -> None:
    made = panel(lambda _: explorer(build_run(tmp_path)))
    assert made.epoch.value == 2  # the last one until somebody chooses
    made.epoch.value = 1
    made.variant.value = "mean_untrained"
    assert (made.epoch.value, made.epoch.disabled) == (0, True)
    made.variant.value = "mean_kl_last"
    assert (made.epoch.value, made.epoch.disabled) == (1, False)
    assert "epoch 1" in made.out.value


def test_what_goes_wrong_is_shown_in_the_view_and_another_choice_recovers(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)

    def load(name: str) -> Explorer:
        if name == "broken":
            raise KeyError("<rows>")
        return explorer(tiny)

    made = panel(load, ["broken", "good"])
    assert 'class="vx-error"' in made.out.value
    assert "KeyError" in made.out.value
    assert "&lt;rows&gt;" in made.out.value
    made.search.value = "tok1"  # boxes of a run that could not be read do nothing
    made.epoch.value = 0
    assert 'class="vx-error"' in made.out.value
    made.run.value = "good"
    assert "·tok0" in made.out.value
    made.run.value = "broken"
    assert 'class="vx-error"' in made.out.value
    assert made.token.options == ()
    made.run.value = "good"
    (tiny.run.folder / "03_phase1_training/mean_kl_last/rows/epoch_02.safetensors").unlink()
    made.variant.value = "mean_kl_last"
    assert 'class="vx-error"' in made.out.value
    made.variant.value = "mean_ce"
    assert 'class="vx-error"' not in made.out.value


def test_boxes_have_labels_and_a_line_for_a_restarted_kernel(tmp_path: Path) -> None:
    made = panel(lambda _: explorer(build_run(tmp_path)))
    boxes = {"Run": made.run, "Objective": made.variant, "Find token": made.search, "Token": made.token}
    boxes |= {"Epoch": made.epoch, "Rows": made.matrix}
    assert {name: box.description for name, box in boxes.items()} == {name: name for name in boxes}
    assert 'role="alert"' in made.restart.value
    assert ".vx-restart{display:none}" in made.restart.value  # shown by the class that JupyterLab sets on a restart
    assert ".jupyter-widgets-disconnected .vx-restart{display:block}" in made.restart.value
    assert "vx-panel" in made.box._dom_classes


def test_the_map_is_a_picture_with_words(tmp_path: Path) -> None:
    shown = view_html(explorer(build_run(tmp_path)).view("mean_ce", 0, 2))
    [(alt, source)] = re.findall(r'class="vx-map" alt="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)"', shown)
    assert "<svg" not in shown
    assert "12 new rows" in alt
    drawn = ElementTree.fromstring(base64.b64decode(source))
    assert len(drawn.findall(".//{*}circle")) == 12 + 1


def test_float16_originals(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    half = {key: rows.to(torch.bfloat16) for key, rows in tiny.original.items()}
    view = Explorer(read_tokens(tiny.run), read_histories(tiny.run), half, decode).view("mean_ce", 0, 2)
    assert len(view.neighbours) == 8


def luminance(color: tuple[float, ...]) -> float:
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_kl_strip_is_readable_at_every_depth() -> None:
    from vocabx_utils.analysis.explorer_view import _kl_strip

    strip = _kl_strip(pd.DataFrame({"kl": np.linspace(0, 3, 60), "shown": ["x"] * 60}))
    inks = {"#fff": 1.0, "#000": 0.0}
    found = re.findall(r"background:rgb\((\d+),(\d+),(\d+)\);color:(#\w+)", strip)
    assert len(found) == 60
    for *rgb, ink in found:
        one, other = sorted((luminance(tuple(map(float, rgb))), inks[ink]))
        assert (other + 0.05) / (one + 0.05) >= 4.5
