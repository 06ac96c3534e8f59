"""From measured runs to a document, its words and its page: what is compared, what is refused, what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.ports import EngineInfo, Verdict, WorkItem
from pipeline.reports.bench_page import bench_page
from pipeline.reports.bench_words import findings, tables
from pipeline.specs.bench import BenchArm, BenchItem, BenchRequest
from workers.engines.benching.document import build_document
from workers.engines.benching.library_arm import check_understood
from workers.engines.benching.runs import ArmRun, MemoryUse, Outcome
from workers.engines.benching.session import Session

MEMORY = MemoryUse(((0.0, 3 << 20), (0.5, 5 << 20)), 3 << 20, 5 << 20, 6 << 20, True, 1 << 20)
LOOKUP = {
    "lookup_rounds": 10,
    "lookup_drafted_rounds": 4,
    "lookup_emitted": 16,
    "lookup_proposed": 12,
    "lookup_positions_tested": 8,
    "lookup_accepted": 6,
    "lookup_refused_rows": 1,
}
VERDICT = Verdict("lookup", "declined", "probe_failed", "block and chain part", 2)

PLAIN = BenchArm(name="plain", options={"width": 2, "endpoint": "/v1/chat/completions"}, without=("lookup",))
GUESSING = BenchArm(name="lookup", options=PLAIN.options, uses=("lookup",))
LIBRARY = BenchArm(name="mlx_lm", runner="mlx_lm", options=PLAIN.options)


def run(seconds: float, *tokens: Sequence[int], counters: dict[str, int] | None = None) -> ArmRun:
    outcomes = tuple(
        Outcome(f"<i>{number}", (tuple(answer),), ("text",), 4, len(answer), None, 0.2, 0.5, 0.1, 0.05)
        for number, answer in enumerate(tokens)
    )
    verdicts = (VERDICT,) if counters else ()
    return ArmRun(outcomes, seconds, MEMORY, {"p50": 0.05, "p95": 0.09}, counters or {}, verdicts)


def document_of(
    *arms_and_runs: tuple[BenchArm, list[ArmRun]], baseline: str = "plain", margin: float = 1.0
) -> dict[str, Any]:
    """A document of arms over two items."""
    arms = tuple(arm for arm, _ in arms_and_runs)
    items = tuple(BenchItem(custom_id=f"<i>{number}", body={}) for number in range(2))
    request = BenchRequest(
        title="<b>title", model_name="m", model_path="/m", arms=arms, baseline=baseline, items=items, repeat=2
    )
    info = EngineInfo("generate", "d", {"dtype": "float32"}, 1.0, details={"model_type": "llama"})
    names = [arm.name for arm in arms]
    return build_document(
        Session(
            request,
            info,
            load_s=1.0,
            loaded_bytes=1 << 20,
            runs={arm.name: found for arm, found in arms_and_runs},
            order=[names, names],
            margin_of=lambda item, shared, token, other: margin,
        )
    )


def arm_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(arm for arm in document["arms"] if arm["name"] == name)


SAME = ([1, 2, 3], [4, 5, 6])


@pytest.fixture
def document() -> dict[str, Any]:
    return document_of(
        (PLAIN, [run(2.0, *SAME), run(4.0, *SAME)]),
        (GUESSING, [run(1.0, *SAME, counters=LOOKUP), run(2.0, *SAME, counters=LOOKUP)]),
        (LIBRARY, [run(2.0, [1, 2, 3], [4, 5, 7])] * 2),
        margin=1e-5,
    )


def test_ratios_pair_the_repetitions(document: dict[str, Any]) -> None:
    assert arm_of(document, "lookup")["ratio"]["per_run"] == (2.0, 2.0)
    assert arm_of(document, "plain")["ratio"] is None
    assert arm_of(document, "plain")["summary"]["tokens_per_s"] == {"median": 2.25, "min": 1.5, "max": 3.0}
    assert document["is_comparable"]


def test_speculation_is_of_the_summed_counters(document: dict[str, Any]) -> None:
    found = arm_of(document, "lookup")["speculation"]["lookup"]
    assert (found["proposed"], found["acceptance"], found["position_acceptance"]) == (24, 0.5, 0.75)
    assert (found["mean_width"], found["mean_accepted_prefix"]) == (3.0, 1.5)
    assert found["declines"] == {"lookup_refused_rows": 2}


def test_findings_say_ratio_answers_and_ties(document: dict[str, Any]) -> None:
    told = {finding.text.split(":")[0]: finding for finding in findings(document)}
    assert "2.00 times plain" in told["lookup"].text and "same token ids as plain on all 2" in told["lookup"].text
    assert told["lookup"].level == "good"
    assert "1 of 2 answers part from plain's at a tie" in told["mlx_lm"].text


def test_refused_arm_has_no_ratio_and_a_reason() -> None:
    document = document_of(
        (PLAIN, [run(1.0, *SAME)] * 2),
        (GUESSING, [run(0.5, *SAME)] * 2),
        (LIBRARY, [run(1.0, [1, 2], [4])] * 2),
    )
    assert not document["is_comparable"]
    for name, why in [("lookup", "lookup never ran"), ("mlx_lm", "output tokens")]:
        assert arm_of(document, name)["ratio"] is None
        assert why in arm_of(document, name)["refused"]
    assert [finding.text.split(":")[0] for finding in findings(document)] == ["plain", "lookup", "mlx_lm"]
    assert "refused" in [cell for row in tables(document)[0].rows for cell in row]


def test_unfit_baseline_leaves_no_ratio_at_all() -> None:
    answers = [run(1.0, *SAME), run(1.0, [1, 2, 3], [4, 5, 9])]
    document = document_of((PLAIN, answers), (LIBRARY, [run(1.0, *SAME)] * 2))
    assert "repetition 2" in arm_of(document, "plain")["refused"]
    assert arm_of(document, "mlx_lm")["refused"] == "the baseline plain is refused"


def test_library_as_baseline_is_held_against_our_first_arm() -> None:
    document = document_of((LIBRARY, [run(2.0, *SAME)] * 2), (PLAIN, [run(1.0, *SAME)] * 2), baseline="mlx_lm")
    assert document["method"]["reference"] == "plain"
    assert arm_of(document, "plain")["ratio"]["median"] == 2.0
    assert arm_of(document, "mlx_lm")["correspondence"]["status"] == "equal"


def test_page_shows_all_of_it_and_keeps_names_text(document: dict[str, Any]) -> None:
    page = bench_page(document)
    assert "<b>title" not in page and "&lt;b&gt;title" in page
    for text in ("2.00 times plain", "probe_failed", "block and chain part", "lookup_proposed 24", "sha256 None"):
        assert text in page
    assert page.count("<svg") == 4


def test_library_is_not_asked_for_what_it_would_pass_over() -> None:
    item = WorkItem(0, "a", {"messages": [], "max_tokens": 4, "stop": ["x"], "presence_penalty": None})
    with pytest.raises(UsageError, match=r"a: it knows no stop$"):
        check_understood(LIBRARY, [item])
    arm = LIBRARY.model_copy(update={"options": {"sampling": {"temperature": 0.5, "repetition_penalty": 1.5}}})
    with pytest.raises(UsageError, match="knows no repetition_penalty"):
        check_understood(arm, [])


def test_gates_are_counted_over_repetitions(document: dict[str, Any]) -> None:
    gates = tables(document)[-1]
    assert gates.rows == (("lookup", "lookup", "declined", "probe_failed", "block and chain part", "4"),)
