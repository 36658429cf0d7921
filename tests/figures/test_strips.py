"""Token strips: what is visible, where columns meet, HTML that stands alone, figures that save as SVG and PDF."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import pytest
from fixtures.alignment_tokenizers import FAMILIES, make_tokenizer, with_added, with_merges
from fixtures.github_view import github_view
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabx_utils.figures.looks import LOOKS, visible, visible_tokens
from vocabx_utils.figures.strips import Strip, strip_from_pieces, token_strip
from vocabx_utils.models import load_tokenizer
from vocabx_utils.vocabulary.alignment import align_text

ORIGINAL = ["import", " num", "py", " as", " np", "\n", "st", "d", "(", ")"]
EXTENDED = ["import", " numpy", " as", " np", "\n", "std", "(", ")"]


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (b" x\n", "·x↵"),
        (b"\t\r\x00", "→␍␀"),
        ("⭢".encode()[:2], "‹E2 AD›"),
        ("⭢".encode()[2:] + b"a", "‹A2›a"),
        ("\u0301".encode(), "◌\u0301"),
        ("\u200d\u00a0".encode(), "‹U+200D›‹U+00A0›"),
        (b" " * 8, "·×8"),
        (b"", ""),
        ("🙂é".encode(), "🙂é"),
        (b"a" * 15 + b"b" * 15, "aaaaaaaaaaa…bbbbbbbbbbbb"),
    ],
)
def test_nothing_is_invisible(piece, shown):
    assert visible(piece) == shown


def test_token_ids_are_spelt_with_bars_and_names_of_specials():
    tokenizer = load_tokenizer("smollm2-135m")
    ids = tokenizer(" xp⭢").input_ids
    assert visible_tokens(tokenizer, [*ids, tokenizer.eos_token_id]) == "·x | p | ‹E2› | ‹AD› | ‹A2› | <|im_end|>"
    assert visible_tokens(tokenizer, []) == ""


@given(st.binary(max_size=12))
def test_visible_text_prints(piece):
    text = re.sub("‹[0-9A-F ]+›", "", visible(piece, 1000))
    assert text.replace("◌", "").isprintable() and not re.search(r"\s", text)


class Table(HTMLParser):
    """Collects the column spans and texts of each table row, and any tag that needs a script or style sheet."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, int, str]]] = []
        self.forbidden: list[str] = []
        self.label = ""
        self.open: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.open.append(tag)
        if tag in {"script", "style", "link", "img"} or any(
            name.startswith("on") or name == "class" for name in values
        ):
            self.forbidden.append(tag)
        if values.get("role") == "figure":
            self.label = values["aria-label"]
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append((tag, int(values.get("colspan", 1)), values.get("style", "")))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_html(strip: Strip) -> None:
    table = Table(strip.html())
    assert not table.forbidden and not table.open
    assert table.label == strip.summary
    for top, middle, bottom in zip(table.rows[::3], table.rows[1::3], table.rows[2::3], strict=True):
        widths = {sum(span for _, span, _ in row) for row in (top, middle, bottom)}
        assert len(widths) == 1  # all three rows fill the same columns
        for _, _, style in top[1:] + bottom[1:]:
            assert ("color:#" in style and "background:#" in style) or "background:none" in style
    cells = sum("border" in style and "padding:2px" in style for row in table.rows for *_, style in row)
    assert cells == len(strip.original) + len(strip.extended)


def test_strip_of_the_thesis_figure():
    strip = strip_from_pieces(ORIGINAL, EXTENDED)
    assert [token.kind for token in strip.original].count("merged") == 4
    assert [token.text for token in strip.extended if token.kind == "new"] == ["·numpy", "std"]
    assert strip.text().splitlines() == [
        "original |import|·num¦py|·as|·np|↵|st¦d|(|)|",
        "extended |import|◆·numpy|·as|·np|↵|◆std|(|)|",
    ]
    assert "10 original tokens above 8 extended tokens" in strip.summary
    check_html(strip)
    assert repr(strip).startswith(strip.summary) and strip._repr_html_() == strip.html()


def test_shape_tells_the_kinds_apart_without_colour():
    borders = re.findall(r"border:(\d+px \w+)", strip_from_pieces(ORIGINAL, EXTENDED).html())
    assert {"1px solid", "2px dashed", "3px double"} <= set(borders)
    assert len({LOOKS[kind].mark for kind in ("same", "new", "recut")}) == 3


def test_legend_names_every_kind_where_a_page_drops_colours_and_borders():
    original, extended = [*ORIGINAL, " ", " group", "by"], [*EXTENDED, " ", " ", "groupby"]
    page = github_view(strip_from_pieces(original, extended).html())
    tokens = [cell.get_text() for row in page.find_all("tr") for cell in row.find_all("td")]
    assert {"·num", "◆·numpy", "2:1", "○·"} <= set(tokens)
    items = [" ".join(item.get_text().split()) for item in page.find_all("li")]
    assert items == [
        "same token on both sides (no mark)",
        "old token inside a span that the other side spells differently (no mark, beside a ratio such as 2:1)",
        "◆ new token",
        "○ old token, other cut",
        "between the rows, 2:1 counts the original and the extended tokens of a span",
    ]
    assert not page.find(style=True)


def test_long_strips_break_at_shared_boundaries_only():
    strip = strip_from_pieces(ORIGINAL * 6, EXTENDED * 6)
    lines = strip.lines(40)
    assert len(lines) > 3
    assert all(line.points[0] in strip.shared and line.points[-1] in strip.shared for line in lines)
    assert all(before.points[-1] == line.points[0] for before, line in pairwise(lines))
    assert strip.text(40).count("original") == len(lines)
    assert max(len(line) for line in strip.text(40).splitlines()) <= 40 + len("original ||") + 8
    check_html(strip)


def test_old_tokens_that_are_cut_differently_have_their_own_kind():
    strip = strip_from_pieces([" ", " group", "by"], [" ", " ", "groupby"])
    assert [token.kind for token in strip.extended] == ["same", "recut", "new"]
    assert strip.text().splitlines()[1].startswith("extended |·|○·¦◆groupby")


def test_specials_get_a_column_of_their_own():
    pair = with_added("byte-level")
    strip = token_strip(pair, "<|begin|>a groupby<|end|><|end|>b")
    kinds = [[token.kind for token in row].count("special") for row in (strip.original, strip.extended)]
    assert kinds == [3, 3]
    assert "<|end|>|<|end|>" in strip.text()
    assert "&lt;|begin|&gt;" in strip.html()
    check_html(strip)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("make", [with_added, with_merges])
def test_strips_of_every_family(family, make):
    for text in ("naïve 🙂 df.groupby(x)", "x groupby y groupby(z)", "", "groupbye\u0301 <b>&", "\u0301"):
        strip = token_strip(make(family), text)
        if text:
            check_html(strip)
        for row, line in zip((strip.original, strip.extended), ("original", "extended"), strict=True):
            drawn = [part for part in strip.text(10_000).splitlines() if part.startswith(line)]
            assert all(token.label in "".join(drawn) for token in row)


PAIR = with_added("byte-level")


@given(st.lists(st.sampled_from(["groupby", "numpy", " ", "\n", "é", "<|end|>", "🙂", "x"]), max_size=12).map("".join))
@settings(max_examples=60, deadline=None)
def test_columns_of_both_rows_agree_with_the_boundaries(text):
    strip, aligned = token_strip(PAIR, text), align_text(PAIR, text)
    stops = [{token.index: token.stop for token in row} for row in (strip.original, strip.extended)]
    assert all(stops[0][i] == stops[1][j] for i, j in aligned.boundaries.tolist())
    assert {stops[0][i] for i, _ in aligned.boundaries.tolist()} <= strip.shared
    if text:
        check_html(strip)


def test_pieces_must_spell_one_text():
    with pytest.raises(ValueError, match="must be one text"):
        strip_from_pieces(["a"], ["b"])


def test_strip_without_new_tokens():
    tokenizer = make_tokenizer("byte-level")
    strip = token_strip(SimpleNamespace(original=tokenizer, extended=tokenizer), "a b")
    assert {token.kind for token in strip.extended} == {"same"} and set(LOOKS) > {"same"}
