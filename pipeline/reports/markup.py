"""HTML and SVG as a tree of elements. Text and attributes are escaped when it is written, so none can become markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

Node = ElementTree.Element
Child = Node | str | None

#: Characters that no HTML text may hold; a replacement character shows where one was.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def element(tag: str, *children: Child, **attributes: str | float | None) -> Node:
    """An element; ``None`` children and attributes are left out.

    ``class_`` is the attribute ``class``; an underscore inside a name is a hyphen (``stroke_width``).
    """
    node = ElementTree.Element(tag)
    for name, value in attributes.items():
        if value is not None:
            node.set(name.rstrip("_").replace("_", "-"), _text(value))
    for child in children:
        append(node, child)
    return node


def append(node: Node, child: Child) -> None:
    """Add an element, or text after whatever is there."""
    if child is None:
        return
    if isinstance(child, str):
        text = _text(child)
        if len(node):
            node[-1].tail = (node[-1].tail or "") + text
        else:
            node.text = (node.text or "") + text
        return
    node.append(child)


def write_html(root: Node) -> str:
    """A whole HTML document."""
    return "<!doctype html>\n" + ElementTree.tostring(root, encoding="unicode", method="html") + "\n"


def _text(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(value))
