"""Runs and judgements: both layouts are read, what is torn is named by its line, what is written is read back."""

from __future__ import annotations

import pytest

from pipeline.errors import InputInvalid
from pipeline.formats.trec import Hit, Judgement, dump_run, parse_qrels, parse_run


def test_parse_qrels_reads_both_layouts() -> None:
    wanted = [Judgement("1", "184", 3), Judgement("1", "29", 0), Judgement("q 2", "d", -1)]
    beir = ["\ufeffquery-id\tcorpus-id\tscore\r\n", "1\t184\t3\r\n", "\n", "1\t29\t0\r\n", "q 2\td\t-1"]
    assert list(parse_qrels(beir)) == wanted
    assert list(parse_qrels(["1 0 184 3\n", "1\t0\t29\t0\n", "q2 Q0 d -1\n"])) == [
        *wanted[:2],
        Judgement("q2", "d", -1),
    ]
    assert list(parse_qrels([])) == []


@pytest.mark.parametrize(
    ("lines", "place", "message"),
    [
        (["1 0 a 3", "1 a 3"], "line 2", "query, iteration, document, relevance"),
        (["query-id\tcorpus-id\tscore", "1\ta"], "line 2", "query-id, corpus-id, score"),
        (["query-id\tcorpus-id\tscore", "1\t\t2"], "line 2", "query-id, corpus-id, score"),
        (["1 0 a 1.5"], "line 1", "whole number"),
        (["1 0 a 1", "", "1 0 a 1"], "line 3", "line 1 too"),
    ],
)
def test_parse_qrels_names_the_line_that_is_wrong(lines: list[str], place: str, message: str) -> None:
    with pytest.raises(InputInvalid, match=message) as caught:
        list(parse_qrels(lines))
    assert caught.value.place == place


def test_dump_run_is_read_back_with_every_digit() -> None:
    hits = [Hit("1", "a", 1, 0.1 + 0.2), Hit("1", "größe", 2, -1e-30), Hit("2", "a", 1, 7.0)]
    lines = list(dump_run(hits, "exact"))
    assert lines[2] == "2 Q0 a 1 7.0 exact\n"
    assert list(parse_run(lines)) == hits


@pytest.mark.parametrize("word", ["", "two words", "line\nbreak", "nbsp\u00a0", " lead"])
def test_dump_run_refuses_ids_that_columns_cannot_hold(word: str) -> None:
    for hit, tag in ((Hit(word, "d", 1, 1.0), "t"), (Hit("q", word, 1, 1.0), "t"), (Hit("q", "d", 1, 1.0), word)):
        with pytest.raises(InputInvalid, match="white space"):
            list(dump_run([hit], tag))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1 Q0 a 1 0.5"], "columns"),
        (["1 Q0 a first 0.5 t"], "must be numbers"),
        (["1 Q0 a 1 nan t"], "must be finite"),
        (["1 Q0 a 1 0.5 t", "1 Q0 a 2 0.4 t"], "line 1 too"),
    ],
)
def test_parse_run_names_the_line_that_is_wrong(lines: list[str], message: str) -> None:
    with pytest.raises(InputInvalid, match=message) as caught:
        list(parse_run(lines))
    assert caught.value.place == f"line {len(lines)}"
