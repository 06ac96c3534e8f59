"""Sizes of memory as people write them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b", re.IGNORECASE)

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Bytes of ``6GiB``, ``500 MB``, ``1.5gib``: powers of 1024 with an i, of 1000 without. Raises ValueError."""
    if text.strip().isdigit():
        return int(text)
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size: write bytes, or a number with MB, MiB, GB or GiB")
    number, power, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[power.lower()])


def _read_size(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else value


#: A positive number of bytes, or text that :func:`parse_size` reads.
ByteSize = Annotated[int, BeforeValidator(_read_size), Field(gt=0)]
