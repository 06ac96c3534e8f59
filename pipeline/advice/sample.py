"""A bounded sample of a file of requests: which lines, and how many there are. Memory does not grow with the file."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import InputInvalid, SpecError
from pipeline.formats.json_line import parse_object
from pipeline.formats.lines import LineReader, OverlongLine
from pipeline.formats.openai_batch import looks_like_batch, read_batch_request
from pipeline.formats.problems import LineRefused
from pipeline.formats.requests import Request
from pipeline.formats.simple import FieldNames, SimpleFormat
from pipeline.specs import Endpoint, GenerateSpec, JobKind

#: Requests in a sample.
SAMPLE_ITEMS = 1000

#: Bytes of a file that are looked at; of what lies behind them the number of lines is estimated.
SAMPLE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """``items`` counts lines that are not blank; ``problem`` is the first invalid line's, with its number."""

    items: int
    is_estimate: bool
    requests: tuple[Request, ...]
    invalid: int
    problem: str | None


def read_sample(
    path: Path, spec: GenerateSpec, *, max_line_bytes: int, items: int = SAMPLE_ITEMS, most_bytes: int = SAMPLE_BYTES
) -> Sample:
    """The same lines each time: every line of the part that is looked at has the same chance.

    Raises:
        SpecError: the file cannot be read.
        InputInvalid: there is no request in it, or none that is valid.
    """
    draw = random.Random(0)
    kept: list[tuple[int, bytes | OverlongLine]] = []
    seen = looked_at = 0
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            for number, line in LineReader(stream, max_line_bytes=max_line_bytes):
                seen += 1
                if len(kept) < items:
                    kept.append((number, line))
                elif (place := draw.randrange(seen)) < items:
                    kept[place] = (number, line)
                looked_at = stream.tell()
                if looked_at >= most_bytes:
                    break
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror or error}", place=str(path)) from None
    is_estimate = looked_at < size and seen > 0 and looked_at >= most_bytes
    total = seen * size // looked_at if is_estimate else seen
    return _parse(path, sorted(kept, key=lambda one: one[0]), spec, total, is_estimate)


def _parse(
    path: Path, lines: list[tuple[int, bytes | OverlongLine]], spec: GenerateSpec, total: int, is_estimate: bool
) -> Sample:
    simple = SimpleFormat(JobKind.GENERATE, FieldNames(), raw=spec.endpoint is Endpoint.COMPLETIONS)
    requests: list[Request] = []
    problem: str | None = None
    for number, line in lines:
        try:
            requests.append(_read(line, simple, spec))
        except LineRefused as refused:
            problem = problem or f"{path}:{number}: {refused.code}: {refused.message}"
    if not requests:
        raise InputInvalid(
            problem or "the file has no requests",
            place=None if problem else str(path),
            hint="one JSON object a line, with `prompt` or `messages`; see docs/formats.md",
        )
    return Sample(total, is_estimate, tuple(requests), len(lines) - len(requests), problem)


def _read(line: bytes | OverlongLine, simple: SimpleFormat, spec: GenerateSpec) -> Request:
    if isinstance(line, OverlongLine):
        raise LineRefused("line_too_long", f"the line has {line.size:,} bytes")
    found = parse_object(line, is_cut=False)
    request = read_batch_request(found) if looks_like_batch(found) else simple.read(found)
    if request.endpoint is not spec.endpoint:
        raise LineRefused("unsupported_endpoint", f"the line asks for {request.endpoint}, the spec for {spec.endpoint}")
    return request
