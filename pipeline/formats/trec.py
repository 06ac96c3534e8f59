"""Runs and relevance judgements as retrieval research writes them: TREC's columns and BEIR's tsv.

A run line is ``query Q0 document rank score tag``. A judgement is ``query iteration document relevance`` (TREC) or
``query-id<TAB>corpus-id<TAB>score`` under a header line of those names (BEIR). Pure functions over lines and values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.errors import InputInvalid

#: First line of a BEIR file of judgements.
BEIR_HEADER = ("query-id", "corpus-id", "score")


@dataclass(frozen=True, slots=True)
class Judgement:
    """How relevant a document is to a query; 0 and below is not relevant."""

    query: str
    document: str
    relevance: int


@dataclass(frozen=True, slots=True)
class Hit:
    """One document of a run's answer to a query; ``rank`` counts from 1, larger scores are better."""

    query: str
    document: str
    rank: int
    score: float


def parse_qrels(lines: Iterable[str]) -> Iterator[Judgement]:
    """Read judgements, BEIR's if the first line is its header, else TREC's; blank lines are skipped.

    Raises:
        InputInvalid: with the line's number, for a line of another shape or a pair that is judged twice.
    """
    seen: dict[tuple[str, str], int] = {}
    is_beir = False
    for number, line in _numbered(lines):
        columns = [column.strip() for column in line.split("\t")]
        if not seen and not is_beir and tuple(columns) == BEIR_HEADER:
            is_beir = True
            continue
        if not is_beir:
            columns = line.split()
            del columns[1:2]
        if len(columns) != 3 or not all(columns):
            wanted = "query-id, corpus-id, score" if is_beir else "query, iteration, document, relevance"
            raise InputInvalid(f"must have the columns {wanted}", place=f"line {number}")
        query, document, relevance = columns
        _note_once(seen, query, document, number)
        try:
            yield Judgement(query, document, int(relevance))
        except ValueError:
            raise InputInvalid(f"relevance must be a whole number, not {relevance!r}", place=f"line {number}") from None


def parse_run(lines: Iterable[str]) -> Iterator[Hit]:
    """Read a run; the score decides the order, as in trec_eval, and the rank must be a whole number.

    Raises:
        InputInvalid: with the line's number, for a line of another shape, a score that is not finite, or a document
            given twice to one query.
    """
    seen: dict[tuple[str, str], int] = {}
    for number, line in _numbered(lines):
        columns = line.split()
        if len(columns) != 6:
            raise InputInvalid("must have the columns query, Q0, document, rank, score, tag", place=f"line {number}")
        query, _, document, rank, score, _ = columns
        _note_once(seen, query, document, number)
        try:
            hit = Hit(query, document, int(rank), float(score))
        except ValueError:
            message = f"rank and score must be numbers, not {rank!r} and {score!r}"
            raise InputInvalid(message, place=f"line {number}") from None
        if not math.isfinite(hit.score):
            raise InputInvalid(f"score must be finite, not {score}", place=f"line {number}")
        yield hit


def dump_run(hits: Iterable[Hit], tag: str) -> Iterator[str]:
    """Lines of a run, each with its newline; scores keep all their digits.

    Raises:
        InputInvalid: an id or the tag is empty or has white space in it, which TREC's columns cannot hold.
    """
    _check_word(tag)
    for hit in hits:
        _check_word(hit.query)
        _check_word(hit.document)
        yield f"{hit.query} Q0 {hit.document} {hit.rank} {hit.score!r} {tag}\n"


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r\n")
        if text.strip():
            yield number, text.removeprefix("\ufeff") if number == 1 else text


def _note_once(seen: dict[tuple[str, str], int], query: str, document: str, number: int) -> None:
    first = seen.setdefault((query, document), number)
    if first != number:
        raise InputInvalid(
            f"query {query!r} and document {document!r} stand in line {first} too", place=f"line {number}"
        )


def _check_word(text: str) -> None:
    if len(text.split()) != 1 or text != text.strip():
        raise InputInvalid(f"{text!r} is empty or has white space in it, which a TREC run cannot hold")
