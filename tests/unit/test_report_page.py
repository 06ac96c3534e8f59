"""A report's page: well formed, one file that needs no other, and whatever is in it stays text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from pipeline.reports.markup import element, write_html
from pipeline.reports.page import Figure, Finding, Page, Pairs, Section, Table, render_page
from pipeline.reports.plots import Bar, Curve, Dots, bars, curves, ratios, share_below

HOSTILE = '<script>alert(1)</script> & "quotes" \' ]]> </style> &amp; \x00\x1b\ud800'

_VOID = {"meta", "br", "hr", "img", "link", "input"}


class Reader(HTMLParser):
    """Keeps tags, attributes and text, and fails on a tag that is closed out of order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(text: str) -> Page:
    drawings = (
        bars([Bar(0, text, 2.0, 1.0, 3.0, text)], label=text, unit=text),
        ratios([Dots(1, text, (0.9, 1.2), (0.5, 2.0), text)], label=text, unit=text),
        curves([Curve(2, text, ((0.0, 1.0), (1.0, 5.0)))], label=text, x_unit=text, y_unit=text),
    )
    blocks = (
        Table((text, text), ((text, text),)),
        Pairs(((text, text),)),
        *(Figure(drawing, text) for drawing in drawings),
    )
    return Page(text, text, (Finding("bad", text),), (Section(text, blocks, lead=text),))


def test_page_is_well_formed() -> None:
    page = render_page(page_of("plain words"))
    assert page.startswith("<!doctype html>\n<html")
    assert {"title", "h1", "table", "dl", "svg", "figcaption"} <= set(Reader(page).tags)


def test_page_needs_no_other_file_and_no_script() -> None:
    page = render_page(page_of("plain words"))
    reader = Reader(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert not {"src", "href", "srcset", "data"} & {name for name, _ in reader.attributes}
    assert not re.search(r"url\(|@import|//", page)


def test_hostile_text_stays_text() -> None:
    page = render_page(page_of(HOSTILE))
    reader = Reader(page)
    assert "script" not in reader.tags
    assert '<script>alert(1)</script> & "quotes" \' ]]> </style> &amp; \ufffd\ufffd\ufffd' in reader.text
    page.encode("utf-8")


def test_hostile_attribute_stays_one_attribute() -> None:
    page = write_html(element("p", title='" onload="x', class_="<b>"))
    assert Reader(page).attributes == [("title", '" onload="x'), ("class", "<b>")]


def test_page_is_readable_in_dark() -> None:
    assert "prefers-color-scheme: dark" in render_page(page_of("x"))


def coordinates(drawing: str, tag: str, name: str) -> list[float]:
    return [float(found) for found in re.findall(rf'<{tag} [^>]*?\b{name}="([^"]+)"', drawing)]


def test_bars_are_in_proportion_and_start_at_nought() -> None:
    rows = [Bar(0, "a", 10.0, 8.0, 12.0, ""), Bar(1, "b", 20.0, 20.0, 24.0, "")]
    first, second = coordinates(write_html(bars(rows, label="", unit="")), "rect", "width")
    assert second == pytest.approx(2 * first, rel=1e-3)


def test_everything_drawn_lies_inside_the_drawing() -> None:
    rows = [Dots(0, "a", (0.2, 9.0), (0.01, 40.0), "x")]
    drawing = write_html(ratios(rows, label="", unit=""))
    width, height = (float(part) for part in re.findall(r'viewBox="0 0 (\d+) (\d+)"', drawing)[0])
    for tag, name, most in [("line", "x1", width), ("line", "y2", height), ("circle", "cx", width)]:
        assert all(0 <= value <= most for value in coordinates(drawing, tag, name))


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_values_that_are_all_the_same_can_be_drawn(value: float) -> None:
    rows = [Bar(0, "a", value, value, value, "")]
    assert "nan" not in write_html(bars(rows, label="", unit=""))
    flat = [Curve(0, "a", ((0.0, value), (0.0, value)))]
    assert "nan" not in write_html(curves(flat, label="", x_unit="", y_unit="", from_nought=False))
    assert "nan" not in write_html(curves([], label="", x_unit="", y_unit=""))


def test_share_below_ends_at_all_of_them() -> None:
    assert share_below([1.0, 2.0]) == ((1.0, 50.0), (2.0, 100.0))
