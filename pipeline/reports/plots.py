"""Plots as inline SVG: bars with whiskers, ratios on a line, curves. Colours are the page's; knows nothing of reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.reports.markup import Node, append, element

#: Units of the drawing; the page scales it to its own width.
WIDTH = 720.0

#: Left of the plot area of horizontal plots, for labels, and right of it, for values.
_LABELS, _VALUES = 150.0, 120.0

_ROW = 34.0

#: Colours of the page's style sheet, used in turn.
_SERIES = 7

#: About how many ticks an axis has.
_TICKS = 6

#: Longest label, in characters; a longer one is cut, and is whole in the table.
_LABEL_CHARS = 20


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: a value with the range it was seen in. ``text`` stands at its right, ``series`` gives the colour."""

    series: int
    label: str
    value: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Dots:
    """One row: what was seen, and an interval where one is known."""

    series: int
    label: str
    values: tuple[float, ...]
    interval: tuple[float, float] | None
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through (x, y) points in the order of x."""

    series: int
    label: str
    points: tuple[tuple[float, float], ...]


def bars(rows: Sequence[Bar], *, label: str, unit: str) -> Node:
    """Horizontal bars from nought, a whisker from the lowest to the highest value on each."""
    scale = _Scale(0.0, max((row.high for row in rows), default=1.0), _LABELS, WIDTH - _VALUES)
    drawing, _ = _rows(len(rows), scale, label, unit)
    for number, row in enumerate(rows):
        middle = _middle(number)
        append(drawing, _row_label(row.label, middle))
        append(
            drawing,
            element(
                "rect",
                x=scale.low_at,
                y=middle - 9,
                width=max(0.0, scale.at(row.value) - scale.low_at),
                height=18.0,
                class_=f"fill s{row.series % _SERIES}",
            ),
        )
        for node in _whisker(scale.at(row.low), scale.at(row.high), middle):
            append(drawing, node)
        append(drawing, _text(row.text, WIDTH - _VALUES + 10, middle + 4))
    return drawing


def ratios(rows: Sequence[Dots], *, label: str, unit: str) -> Node:
    """A dot for each repetition, the interval as a line under them, and a rule at 1."""
    values = [value for row in rows for value in (*row.values, *(row.interval or ()))]
    low, high = min([1.0, *values]), max([1.0, *values])
    margin = 0.08 * (high - low) or 0.1
    scale = _Scale(max(0.0, low - margin), high + margin, _LABELS, WIDTH - _VALUES)
    drawing, bottom = _rows(len(rows), scale, label, unit)
    append(drawing, element("line", x1=scale.at(1.0), x2=scale.at(1.0), y1=6.0, y2=bottom, class_="rule"))
    for number, row in enumerate(rows):
        middle = _middle(number)
        append(drawing, _row_label(row.label, middle))
        if row.interval:
            for node in _whisker(scale.at(row.interval[0]), scale.at(row.interval[1]), middle):
                append(drawing, node)
        for value in row.values:
            append(
                drawing, element("circle", cx=scale.at(value), cy=middle, r=4.5, class_=f"dot s{row.series % _SERIES}")
            )
        append(drawing, _text(row.text, WIDTH - _VALUES + 10, middle + 4))
    return drawing


def curves(series: Sequence[Curve], *, label: str, x_unit: str, y_unit: str, from_nought: bool = True) -> Node:
    """Lines over one another, with a legend below; ``from_nought`` starts the vertical axis at 0."""
    points = [point for one in series for point in one.points]
    top, bottom, left, right = 26.0, 250.0, 64.0, WIDTH - 20
    lowest = 0.0 if from_nought else min((y for _, y in points), default=0.0)
    highest = max((y for _, y in points), default=1.0)
    room = 0.0 if from_nought else 0.05 * (highest - lowest)
    across = _Scale(min([0.0, *(x for x, _ in points)]), max((x for x, _ in points), default=1.0), left, right)
    up = _Scale(lowest - room, highest + room, bottom, top)
    places = _legend([one.label for one in series], left, right)
    drawing = _drawing(label, bottom + 72 + 20 * max((row for _, row in places), default=0))
    for tick in up.ticks():
        append(drawing, element("line", x1=left, x2=right, y1=up.at(tick), y2=up.at(tick), class_="grid"))
        append(drawing, _text(up.text(tick), left - 8, up.at(tick) + 4, "end"))
    for tick in across.ticks():
        append(drawing, _text(across.text(tick), across.at(tick), bottom + 18, "middle"))
    append(drawing, element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    append(drawing, _text(y_unit, left, 14.0))
    append(drawing, _text(x_unit, right, bottom + 36, "end"))
    for one in series:
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in one.points)
        append(drawing, element("polyline", points=path, class_=f"line s{one.series % _SERIES}"))
    for one, (x, row) in zip(series, places, strict=True):
        y = bottom + 54 + 20 * row
        append(drawing, element("rect", x=x, y=y - 9, width=14.0, height=9.0, class_=f"fill s{one.series % _SERIES}"))
        append(drawing, _text(_cut(one.label), x + 20, y))
    return drawing


def share_below(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Points of the curve "so many percent are at most x", for sorted values."""
    count = len(values)
    return tuple((value, 100.0 * (number + 1) / count) for number, value in enumerate(values))


# --- scales and pieces ------------------------------------------------------------------------------------------------


class _Scale:
    """From values to a coordinate, with round ticks."""

    def __init__(self, low: float, high: float, low_at: float, high_at: float) -> None:
        self.low, self.low_at, self.high_at = low, low_at, high_at
        self.high = high if high > low else low + 1.0

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.low_at + share * (self.high_at - self.low_at)

    def ticks(self) -> list[float]:
        """Round values inside the scale, about ``_TICKS`` of them."""
        step = self._step()
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def text(self, value: float) -> str:
        """As many digits as tell neighbouring ticks apart."""
        step = self._step()
        digits = next((count for count in range(9) if abs(round(step, count) - step) < 1e-6 * step), 9)
        return f"{value:,.{digits}f}"

    def _step(self) -> float:
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        return next(size * power for size in (1.0, 2.0, 2.5, 5.0, 10.0) if size * power >= rough * 0.999)


def _drawing(label: str, height: float) -> Node:
    return element("svg", element("title", label), viewBox=f"0 0 {WIDTH:.0f} {height:.0f}", role="img")


def _rows(count: int, scale: _Scale, label: str, unit: str) -> tuple[Node, float]:
    """A drawing with room for so many rows, its axis and grid; gives the axis's place, too."""
    bottom = 8.0 + _ROW * max(count, 1)
    drawing = _drawing(label, bottom + 44)
    for tick in scale.ticks():
        x = scale.at(tick)
        append(drawing, element("line", x1=x, x2=x, y1=6.0, y2=bottom, class_="grid"))
        append(drawing, _text(scale.text(tick), x, bottom + 18, "middle"))
    append(drawing, _text(unit, scale.high_at, bottom + 36, "end"))
    return drawing, bottom


def _middle(row: int) -> float:
    return 8.0 + _ROW * (row + 0.5)


def _row_label(text: str, middle: float) -> Node:
    return _text(_cut(text), _LABELS - 12, middle + 4, "end")


def _cut(text: str) -> str:
    return text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"


def _whisker(low: float, high: float, middle: float) -> list[Node]:
    ends = [element("line", x1=x, x2=x, y1=middle - 5, y2=middle + 5, class_="whisker") for x in (low, high)]
    return [element("line", x1=low, x2=high, y1=middle, y2=middle, class_="whisker"), *ends]


def _text(text: str, x: float, y: float, anchor: str | None = None) -> Node:
    return element("text", text, x=x, y=y, text_anchor=anchor)


def _legend(labels: Sequence[str], left: float, right: float) -> list[tuple[float, int]]:
    """(x, line) of each entry, wrapped to the drawing's width."""
    places = []
    at, row = left, 0
    for label in map(_cut, labels):
        width = 44.0 + 7.5 * len(label)
        if at + width > right and at > left:
            at, row = left, row + 1
        places.append((at, row))
        at += width
    return places
