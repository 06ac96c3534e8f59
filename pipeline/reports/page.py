"""The one template of all reports: a page of findings, tables, plots, facts and definitions, in light and dark.

It has no script and names no other file. Knows nothing about what is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipeline.reports.markup import Node, append, element, write_html
from pipeline.reports.style import STYLE

Level = Literal["good", "bad", "plain"]

_MARKS = {"good": "✓", "bad": "✗", "plain": "•"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence that a reader should take away."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells. Numbers are set to the right and stay on one line; ``is_prose`` cells are text that wraps."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_prose: bool = False


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and what they are: facts, or definitions."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing and what it shows."""

    drawing: Node
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence under it, and blocks."""

    heading: str
    blocks: tuple[Table | Pairs | Figure, ...]
    lead: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """What a report is made of, in the order it is read."""

    title: str
    subtitle: str
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...] = field(default=())


def render_page(page: Page) -> str:
    """The whole HTML document."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", page.title),
        element("style", STYLE),
    )
    header = element("header", element("h1", page.title), element("p", page.subtitle, class_="subtitle"))
    main = element("main", _findings(page.findings), *(_section(one) for one in page.sections))
    return write_html(element("html", head, element("body", header, main), lang="en"))


def _findings(findings: Sequence[Finding]) -> Node | None:
    if not findings:
        return None
    return element(
        "ul",
        *(
            element(
                "li", element("span", _MARKS[one.level], class_="mark"), element("span", one.text), class_=one.level
            )
            for one in findings
        ),
        class_="findings",
    )


def _section(section: Section) -> Node:
    node = element("section", element("h2", section.heading))
    if section.lead:
        append(node, element("p", section.lead))
    for block in section.blocks:
        append(node, _block(block))
    return node


def _block(block: Table | Pairs | Figure) -> Node:
    match block:
        case Table():
            head = element("tr", *(element("th", heading, scope="col") for heading in block.headings))
            body = [
                element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:]))
                for row in block.rows
            ]
            table = element(
                "table", element("thead", head), element("tbody", *body), class_="prose" if block.is_prose else None
            )
            return element("div", table, class_="wide")
        case Pairs():
            terms = [node for name, text in block.pairs for node in (element("dt", name), element("dd", text))]
            return element("dl", *terms)
        case Figure():
            return element("figure", block.drawing, element("figcaption", block.caption))
