"""The measures of a ranking, against values computed by hand."""

from __future__ import annotations

import sys
from math import log2

import pytest

from pipeline.errors import ConfigError, InputInvalid, UsageError
from pipeline.evaluate.ranking import evaluate_ranking
from pipeline.formats.trec import Hit, Judgement

QRELS = [
    Judgement("1", "a", 4),
    Judgement("1", "b", 1),
    Judgement("1", "c", 0),
    Judgement("1", "d", 2),
    Judgement("2", "a", 3),
    Judgement("3", "a", 1),
]

#: Query 1 finds b, c, a in this order and misses d; query 2 finds nothing relevant; query 3 is not answered.
RUN = [
    Hit("1", "b", 1, 0.9),
    Hit("1", "c", 2, 0.8),
    Hit("1", "a", 3, 0.7),
    Hit("2", "x", 1, 0.5),
    Hit("9", "a", 1, 0.5),
]


def test_evaluate_ranking_gives_what_a_hand_computes() -> None:
    report = evaluate_ranking(QRELS, RUN, ("nDCG@10", "nDCG@1", "RR", "R@100", "R@2"))
    gain = 1 / log2(2) + 0 / log2(3) + 4 / log2(4)
    ideal = 4 / log2(2) + 2 / log2(3) + 1 / log2(4)
    first = {"nDCG@10": gain / ideal, "nDCG@1": 1 / 4, "RR": 1.0, "R@100": 2 / 3, "R@2": 1 / 3}
    assert report.per_query["1"] == pytest.approx(first)
    assert report.per_query["2"] == report.per_query["3"] == dict.fromkeys(first, 0.0)
    assert report.values == pytest.approx({name: value / 3 for name, value in first.items()})
    assert (report.judged, report.answered, report.unjudged) == (3, 2, 1)


def test_evaluate_ranking_of_an_empty_run_is_zero() -> None:
    assert evaluate_ranking(QRELS, []).values == {"nDCG@10": 0.0, "RR": 0.0, "R@100": 0.0}


def test_evaluate_ranking_goes_by_score_and_not_by_rank() -> None:
    hits = [Hit("2", "x", 1, 0.1), Hit("2", "a", 2, 0.2)]
    assert evaluate_ranking([Judgement("2", "a", 3)], hits, ("RR",)).values["RR"] == 1.0


def test_evaluate_ranking_refuses_an_unknown_measure_and_no_judgements() -> None:
    for name in ("bogus@3", "", "nDCG@x"):
        with pytest.raises(UsageError, match="no measure"):
            evaluate_ranking(QRELS, RUN, (name,))
    with pytest.raises(InputInvalid, match="no judgements"):
        evaluate_ranking([], RUN)


def test_evaluate_ranking_without_its_library_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(ConfigError, match="ir-measures") as caught:
        evaluate_ranking(QRELS, RUN)
    assert caught.value.hint is not None
    assert "pip install" in caught.value.hint
