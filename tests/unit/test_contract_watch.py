"""What a worker decides by a contract: what may go on, what is counted, what ends the job."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import CeilingExceeded, CeilingUnmeasurable, ContractViolated
from pipeline.ports import Verdict
from pipeline.specs.contract import Contract
from workers.engines.contract import ContractWatch, Findings

MISMATCH = ("draft", "tokens_differ", "token 3 is 7, not 9")


def watch(findings: Findings | None = None, **terms: Any) -> ContractWatch:
    return ContractWatch(Contract(**terms), findings)


def found(one: ContractWatch) -> dict[tuple[str, str, str], int]:
    return {(verdict.mechanism, verdict.outcome, verdict.code): verdict.count for verdict in one.verdicts()}


def test_nothing_found_allows_everything() -> None:
    one = watch()
    assert one.allows("draft") and one.allows("batching") and not one.is_plain
    assert one.verdicts() == ()


def test_decline_turns_off_the_one_mechanism() -> None:
    one = watch()
    assert one.mismatch(*MISMATCH) == "decline"
    assert not one.allows("draft")
    assert one.allows("lookup") and not one.is_plain
    assert one.verdicts() == (Verdict("draft", "violated", *MISMATCH[1:]),)


def test_baseline_turns_off_all_of_them_and_says_so_once() -> None:
    one = watch(fallback="baseline")
    assert one.mismatch(*MISMATCH) == "baseline"
    assert one.mismatch("prefix_cache", "tokens_differ", "again") == "baseline"
    assert one.is_plain and not one.allows("lookup") and not one.allows("batching")
    assert found(one)["all", "declined", "baseline"] == 1


def test_fail_ends_the_job_with_all_that_was_found() -> None:
    one = watch(fallback="fail")
    one.held("lookup", "same_tokens", "alike")
    with pytest.raises(ContractViolated, match="draft: tokens_differ: token 3") as caught:
        one.mismatch(*MISMATCH)
    assert caught.value.code == "contract_violated"
    assert [verdict.outcome for verdict in caught.value.verdicts] == ["held", "violated"]


def test_findings_outlive_the_run_and_each_job_falls_back_by_its_own_contract() -> None:
    findings = Findings()
    watch(findings).mismatch(*MISMATCH)
    careless, careful, strict = (watch(findings, fallback=word) for word in ("decline", "baseline", "fail"))
    for one in (careless, careful, strict):
        assert not one.allows("draft")
        assert found(one)["draft", "declined", "violated_before"] == 1
    assert careless.allows("lookup") and strict.allows("lookup")
    assert careful.is_plain and found(careful)["all", "declined", "baseline"] == 1


def test_what_is_found_often_is_one_verdict_with_the_last_reason() -> None:
    one = watch()
    for length in (5, 6):
        one.declined("lookup", "not_trimmable", f"{length} rows", count=length)
    assert one.verdicts() == (Verdict("lookup", "declined", "not_trimmable", "6 rows", 11),)


@pytest.mark.parametrize(
    ("correctness", "greedy", "sampled"),
    [
        ("greedy_identical", True, True),
        ("distribution_preserving", True, False),
        ("statistical", False, False),
        ("task_quality", False, False),
    ],
)
def test_each_word_says_which_rows_must_be_those_of_plain_decoding(
    correctness: Any, greedy: bool, sampled: bool
) -> None:
    for is_greedy, must in ((True, greedy), (False, sampled)):
        one = watch(correctness=correctness)
        assert one.compared("draft", [1, 2], [1, 2], is_greedy=is_greedy) is None
        assert one.compared("draft", [1, 2], [1, 3], is_greedy=is_greedy) == ("decline" if must else None)
        code = ("draft", "violated", "tokens_differ") if must else ("draft", "held", "tokens_may_differ")
        assert found(one) == {("draft", "held", "same_tokens"): 1, code: 1}


def test_a_row_that_is_cut_short_is_another_row() -> None:
    one = watch()
    assert one.compared("batching", [1, 2, 3], [1, 2], is_greedy=True) == "decline"
    assert "token 2 of a row is 3; the plain path has the end" in one.verdicts()[0].reason


def test_a_mechanism_must_promise_as_much_as_the_contract_asks() -> None:
    asks = watch(correctness="distribution_preserving")
    assert asks.permits("greedy_identical") and asks.permits("distribution_preserving")
    assert not asks.permits("statistical")
    assert not watch().permits("distribution_preserving")


@pytest.mark.parametrize(("share", "rows", "due"), [(0.02, 200, 4), (0.1, 33, 4), (0.02, 3, 1), (0, 50, 0), (1, 9, 9)])
def test_the_first_row_of_a_mechanism_and_then_the_share_of_tokens_is_decoded_again(
    share: float, rows: int, due: int
) -> None:
    one = watch(shadow=share)
    answers = []
    for _ in range(rows):
        one.worked(64)
        answers.append(one.shadow_due("lookup", 64))
    assert sum(answers) == due
    assert answers[0] == (share > 0)


def test_the_first_row_of_each_mechanism_is_decoded_again_once_in_a_process() -> None:
    findings = Findings()
    first, second = ContractWatch(Contract(), findings), ContractWatch(Contract(), findings)
    assert first.shadow_due("lookup", 100) and first.shadow_due("batching", 100)
    assert not second.shadow_due("lookup", 100)
    second.worked(5_000)
    assert second.shadow_due("lookup", 100) and not second.shadow_due("lookup", 100)


def test_past_a_ceiling_fewer_rows_must_do_and_one_row_is_the_end() -> None:
    one = watch(ceilings={"kv_bytes": "1MiB"})
    assert one.limit("kv_bytes") == 1 << 20 and one.limit("resident_bytes") is None
    assert one.ceiling("resident_bytes", 1e15)  # no ceiling, nothing to say
    assert one.ceiling("kv_bytes", 1 << 19, rows=4)
    assert one.ceiling("kv_bytes", 1 << 18, rows=2)
    assert not one.ceiling("kv_bytes", 1 << 21, rows=4)
    with pytest.raises(CeilingExceeded, match="kv_bytes: 2 MiB needed, 1 MiB allowed") as caught:
        one.ceiling("kv_bytes", 1 << 21)
    assert found(one) == {
        ("ceiling", "held", "kv_bytes"): 2,
        ("ceiling", "declined", "kv_bytes"): 1,
        ("ceiling", "violated", "kv_bytes"): 1,
    }
    assert caught.value.verdicts == one.verdicts()
    assert one.verdicts()[0].reason == "at most 512 KiB of 1 MiB"


def test_a_model_that_started_too_slowly_is_past_its_ceiling_whatever_the_fallback() -> None:
    with pytest.raises(CeilingExceeded, match=r"model_start_s: 12\.5 s needed, 10 s allowed"):
        watch(fallback="decline", ceilings={"model_start_s": 10}).ceiling("model_start_s", 12.5)


def test_a_worker_refuses_what_it_cannot_measure_too() -> None:
    with pytest.raises(CeilingUnmeasurable):
        watch(ceilings={"power_w": 30})
    with pytest.raises(ValueError, match="occupancy"):
        watch().ceiling("occupancy", 0.5)
