"""nDCG, MRR and recall of a run against judgements, as trec_eval computes them (through ir-measures).

Graded relevance is taken as it is given (gain = relevance); a document counts as relevant from 1. Every judged query
counts, and one that the run does not answer counts 0. Equal scores are ordered by document id, descending, as
trec_eval has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType

from pipeline.errors import ConfigError, InputInvalid, UsageError
from pipeline.formats.trec import Hit, Judgement

#: Measures computed unless others are asked for, in ir-measures' words; RR is the mean reciprocal rank (MRR).
DEFAULT_MEASURES = ("nDCG@10", "RR", "R@100")


@dataclass(frozen=True, slots=True)
class RankingReport:
    """Means over the judged queries.

    Attributes:
        values: measure name to mean.
        per_query: query to measure name to value, judged queries only.
        judged: queries with judgements.
        answered: judged queries that the run has hits for.
        unjudged: queries of the run without judgements; they count nowhere.
    """

    values: dict[str, float]
    per_query: dict[str, dict[str, float]]
    judged: int
    answered: int
    unjudged: int


def evaluate_ranking(
    qrels: Iterable[Judgement], run: Iterable[Hit], measures: Sequence[str] = DEFAULT_MEASURES
) -> RankingReport:
    """Compare a run with judgements.

    Raises:
        ConfigError: ir-measures is not installed.
        UsageError: a measure that ir-measures does not know.
        InputInvalid: there are no judgements at all.
    """
    library = _import_library()
    wanted = [_parse_measure(library, name) for name in measures]
    judgements = [library.Qrel(j.query, j.document, j.relevance) for j in qrels]
    hits = [library.ScoredDoc(hit.query, hit.document, hit.score) for hit in run]
    judged = sorted({j.query_id for j in judgements})
    if not judged:
        raise InputInvalid("there are no judgements to compare with")
    ran = {hit.query_id for hit in hits}
    per_query: dict[str, dict[str, float]] = {query: dict.fromkeys(measures, 0.0) for query in judged}
    names = dict(zip(wanted, measures, strict=True))
    for figure in library.iter_calc(wanted, judgements, hits):
        if figure.query_id in per_query:
            per_query[figure.query_id][names[figure.measure]] = float(figure.value)
    values = {name: sum(row[name] for row in per_query.values()) / len(judged) for name in measures}
    return RankingReport(
        values=values,
        per_query=per_query,
        judged=len(judged),
        answered=len(ran & set(judged)),
        unjudged=len(ran - set(judged)),
    )


def _import_library() -> ModuleType:
    try:
        import ir_measures
    except ImportError as error:
        raise ConfigError("evaluation needs the package ir-measures", hint="pip install ir-measures") from error
    return ir_measures


def _parse_measure(library: ModuleType, name: str) -> object:
    try:
        return library.parse_measure(name)
    except (NameError, ValueError, SyntaxError) as error:
        raise UsageError(f"no measure {name!r}", hint="nDCG@10, RR, R@100 and the like") from error
