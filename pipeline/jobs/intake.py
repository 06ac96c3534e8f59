"""Intake: a user's file becomes the job's item file, every line checked while it streams past.

Memory does not grow with the file: lines go by one at a time, ids lie on disk, problems are counted and the first ones
kept. Knows nothing about the job row, the planner or any model; formats are read in :mod:`pipeline.formats`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from pipeline.failpoints import fail_point
from pipeline.formats.items import Item, dump_item
from pipeline.formats.json_line import parse_object
from pipeline.formats.lines import LineReader, OverlongLine
from pipeline.formats.openai_batch import looks_like_batch, read_batch_request
from pipeline.formats.problems import InvalidLines, LineRefused, Problem, show_value
from pipeline.formats.requests import Request, check_custom_id
from pipeline.formats.simple import FieldNames, SimpleFormat
from pipeline.jobs.problem_log import ProblemLog
from pipeline.jobs.seen_ids import SeenIds
from pipeline.ports import JsonObject
from pipeline.specs.base import Endpoint, JobKind
from pipeline.store import layout
from pipeline.store.artifacts import Artifact, ArtifactStore, HashingWriter

#: Bytes of items gathered before they go to the store.
_WRITE_BYTES = 1 << 18

#: Endpoints that a kind of job answers; the first is what a file of nothing but invalid lines is taken for.
_ENDPOINTS: Mapping[JobKind, tuple[Endpoint, ...]] = {
    JobKind.GENERATE: (Endpoint.CHAT, Endpoint.COMPLETIONS),
    JobKind.EMBED: (Endpoint.EMBEDDINGS,),
    JobKind.RERANK: (Endpoint.RERANK,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeOptions(FieldNames):
    """How to read a file; the field names apply to simple lines.

    Attributes:
        kind: what the job does; lines for other endpoints are refused.
        model: the ``--model`` option. Without it every line must name the (one) model; with it the option decides
            and a model named in the file is only reported.
        format: ``auto`` looks at the first line that is a JSON object.
        raw: a simple ``prompt`` is completed as it stands instead of becoming a chat message.
        skip_invalid: an invalid line becomes an item that errs instead of stopping the job.
        max_line_bytes: longest line, without its ending.
    """

    kind: JobKind
    model: str | None = None
    format: Literal["auto", "openai", "simple"] = "auto"
    raw: bool = False
    skip_invalid: bool = False
    max_line_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IntakeReport:
    """What became of a file.

    Attributes:
        items: lines that became items, invalid ones under ``skip_invalid`` included.
        invalid: lines with a problem.
        problems_shown: the first 100 problems.
        errors_path: the local file with all problems; None where there is none or none was asked for.
        code_counts: problems by code, most frequent first.
        endpoint: what every item asks for.
        model: the one model that the file names, if any.
        artifact: the item file.
        blank_lines: lines that were skipped because nothing is in them.
        crlf_lines: lines that ended in CRLF.
        has_bom: the file began with a byte order mark.
    """

    items: int
    invalid: int
    problems_shown: tuple[Problem, ...]
    errors_path: Path | None
    code_counts: Mapping[str, int]
    endpoint: Endpoint
    model: str | None
    artifact: Artifact
    blank_lines: int
    crlf_lines: int
    has_bom: bool


def intake(source: BinaryIO, options: IntakeOptions, store: ArtifactStore, *, errors_path: Path | None) -> IntakeReport:
    """Check every line of ``source`` and write the item file.

    Raises:
        InvalidLines: (an InputInvalid) a line is invalid and ``skip_invalid`` is off, or there is no line at all.
            The store is as before.
        UsageError: options that contradict each other, or ``errors_path`` cannot be written.
        StoreFull, StoreUnavailable: the item file, or the ids on disk, cannot be written.
    """
    lines = LineReader(source, max_line_bytes=options.max_line_bytes)
    with ProblemLog(errors_path) as problems, SeenIds() as seen, store.create(layout.input_file) as pending:
        reading = _Reading(options, seen, problems)
        writer = _ItemWriter(pending.stream)
        for number, data in lines:
            item = reading.read(number, data, is_cut=lines.is_cut)
            # After a problem that stops the job the rest is only checked: its items would be thrown away.
            if options.skip_invalid or not problems.total:
                writer.write(item)
        writer.flush()
        if lines.number == lines.blank_lines:
            problems.add(Problem("empty_file", None, "the file has no requests"))
            raise InvalidLines("the input has no requests", problems.summary())
        summary = problems.summary()
        if summary.total and not options.skip_invalid:
            raise _stopping(problems, lines.number - lines.blank_lines)
        fail_point("submit.before_file")
    return IntakeReport(
        items=writer.items,
        invalid=summary.total,
        problems_shown=summary.shown,
        errors_path=summary.path,
        code_counts=summary.code_counts,
        endpoint=reading.endpoint,
        model=reading.model,
        artifact=pending.artifact,
        blank_lines=lines.blank_lines,
        crlf_lines=lines.crlf_lines,
        has_bom=lines.has_bom,
    )


def _stopping(problems: ProblemLog, requests: int) -> InvalidLines:
    summary = problems.summary()
    counts = ", ".join(f"{code} {count:,}" for code, count in summary.code_counts.items())
    all_in = f"all of them are in {summary.path}; " if summary.path else ""
    return InvalidLines(
        f"{summary.total:,} of {requests:,} lines are invalid ({counts})",
        summary,
        hint=f"{all_in}--skip-invalid makes such lines items that err",
    )


class _ItemWriter:
    """Gathers items into larger writes."""

    def __init__(self, stream: HashingWriter) -> None:
        self._stream = stream
        self._chunks: list[bytes] = []
        self._size = 0
        self.items = 0

    def write(self, item: Item) -> None:
        line = dump_item(item)
        self._chunks.append(line)
        self._size += len(line)
        self.items += 1
        if self._size >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        self._stream.write(b"".join(self._chunks))
        self._chunks.clear()
        self._size = 0


class _Reading:
    """What has to be remembered from line to line: the format, the endpoint, the model, the ids."""

    def __init__(self, options: IntakeOptions, seen: SeenIds, problems: ProblemLog) -> None:
        self._options = options
        self._seen = seen
        self._problems = problems
        self._simple = SimpleFormat(options.kind, options, raw=options.raw)
        self._endpoints = _ENDPOINTS[options.kind]
        self._parse: Callable[[JsonObject], Request] | None = None
        self._id_field = "custom_id"
        self._first_line = 0
        self._model_line = 0
        self.endpoint = self._simple.endpoint
        self.model: str | None = None
        if options.format != "auto":
            self._choose(is_batch=options.format == "openai")

    def read(self, number: int, data: bytes | OverlongLine, *, is_cut: bool) -> Item:
        """The item of a line: a request, or an error that is in the log too."""
        found: JsonObject = {}
        try:
            if isinstance(data, OverlongLine):
                limit = self._options.max_line_bytes
                raise LineRefused("line_too_long", f"the line has {data.size:,} bytes; at most {limit:,} are read")
            found = parse_object(data, is_cut=is_cut)
            request = self._check(found, number)
            custom_id = request.custom_id
            if custom_id is None:
                custom_id = self._seen.id_of_content(request.body)
            holder = self._seen.take(custom_id, number)
            if holder != number:
                message = f"{self._id_field} {show_value(custom_id)} is on lines {holder} and {number}"
                raise LineRefused("duplicate_custom_id", message, self._id_field)
            return Item(custom_id, number, request.body)
        except LineRefused as refused:
            problem = refused.at(number)
            self._problems.add(problem)
            return Item(self._id_for_invalid(found, number), number, error=problem.as_json())

    def _check(self, found: JsonObject, number: int) -> Request:
        if self._parse is None:
            self._choose(is_batch=looks_like_batch(found))
            assert self._parse is not None
        request = self._parse(found)
        if request.endpoint not in self._endpoints:
            wanted = " or ".join(self._endpoints)
            message = f"this is a job of kind {self._options.kind}: url must be {wanted}, not {request.endpoint}"
            raise LineRefused("unsupported_endpoint", message, "url")
        if not self._first_line:
            self._first_line, self.endpoint = number, request.endpoint
        elif request.endpoint is not self.endpoint:
            message = f"url is {request.endpoint}; line {self._first_line} has {self.endpoint}, and a job has one"
            raise LineRefused("mixed_endpoints", message, "url")
        if request.model != self.model or request.model is None:
            self._check_model(request.model, number)
        return request

    def _check_model(self, model: str | None, number: int) -> None:
        if model is None:
            if self._options.model is None:
                raise LineRefused("missing_field", "no model is named, in the line or with --model", "model")
        elif self.model is None:
            self.model, self._model_line = model, number
        else:
            named = f"model is {show_value(model)}; line {self._model_line} has {show_value(self.model)}"
            raise LineRefused("mixed_models", f"{named}, and a job has one", "model")

    def _choose(self, *, is_batch: bool) -> None:
        self._parse = read_batch_request if is_batch else self._simple.read
        self._id_field = "custom_id" if is_batch else self._options.id_field

    def _id_for_invalid(self, found: JsonObject, number: int) -> str:
        """The line's own id where it has one that is free, else one that is made."""
        try:
            custom_id = check_custom_id(found.get(self._id_field))
        except LineRefused:
            return self._seen.take_for_invalid(number)
        return custom_id if self._seen.take(custom_id, number) == number else self._seen.take_for_invalid(number)
