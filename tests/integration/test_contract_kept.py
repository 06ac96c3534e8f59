"""A contract that is violated on purpose: the machinery lies after its probe, the shadow finds it, the fallback holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from pipeline.errors import ContractViolated
from pipeline.ports import Answer, EngineEvent, EngineRequest, JsonObject, RunStats, WorkItem
from workers.engines import generation_run
from workers.engines.batching import decoding
from workers.engines.batching.canonical import Bounds
from workers.engines.batching.lane_caches import Geometry
from workers.engines.batching.lookup import PromptLookup
from workers.engines.batching.prefixes import PrefixStore
from workers.engines.generation import GenerationEngine

CHAT = "/v1/chat/completions"
BODIES = [
    {"messages": [{"role": "user", "content": "the quick brown fox " * (1 + 3 * n)}], "max_tokens": 12}
    for n in range(6)
]


def load(path: Path) -> GenerationEngine:
    engine = GenerationEngine()
    engine.load(EngineRequest("generate", str(path), "digest", "auto", {"endpoint": CHAT}))
    return engine


def run(engine: GenerationEngine, **options: Any) -> tuple[dict[int, Any], RunStats]:
    items = [WorkItem(index, f"item-{index}", body, seed=index) for index, body in enumerate(BODIES)]
    events: list[EngineEvent] = []
    given: JsonObject = {"endpoint": CHAT, "model_name": "tiny", "width": 4, "prefix_cache": False, **options}
    stats = engine.run(items, given, done=frozenset(), emit=events.append, should_stop=lambda: False)
    return {event.index: event.body for event in events if isinstance(event, Answer)}, stats


@pytest.fixture(scope="module")
def plain(tiny_llama_path: Path) -> dict[int, Any]:
    return run(load(tiny_llama_path), width=1)[0]


def look_anywhere(patch: pytest.MonkeyPatch) -> None:
    """Rows of unlike length look at what lies behind them in their lane."""

    def mask(self: Geometry, window: int | None, ring: int | None, end: int) -> mx.array:
        return mx.ones((len(self.lengths), 1, self.columns, end), mx.bool_)

    patch.setattr(Geometry, "_make_mask", mask)


def accept_anything(patch: pytest.MonkeyPatch) -> None:
    """Guesses are made up, and all of them are taken."""
    patch.setattr(
        PromptLookup, "propose", lambda self, limits: {row: [7] * min(3, most) for row, most in limits.items()}
    )
    patch.setattr(decoding, "_holds", lambda guess, token: True)


def mix_up_prefixes(patch: pytest.MonkeyPatch) -> None:
    """What is kept of a prefix is not what was read."""
    keep = PrefixStore.keep

    def wrong(self: PrefixStore, node: Any, segments: list[Any]) -> bool:
        return keep(self, node, [(keys + 1.0, -values) for keys, values in segments])

    patch.setattr(PrefixStore, "keep", wrong)


LIES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], dict[str, Any]]] = {
    "batching": (look_anywhere, {}),
    "lookup": (accept_anything, {"accelerate": "lookup"}),
    "prefix_cache": (mix_up_prefixes, {"prefix_cache": True}),
}


@pytest.mark.parametrize("mechanism", LIES)
@pytest.mark.parametrize("fallback", ["decline", "baseline"])
def test_a_lie_is_found_and_what_failed_is_given_up(
    mechanism: str, fallback: str, tiny_llama_path: Path, plain: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lie, options = LIES[mechanism]
    engine = load(tiny_llama_path)
    lie(monkeypatch)
    answers, stats = run(engine, contract={"fallback": fallback, "shadow": 1.0}, **options)
    assert answers == plain
    found = {(verdict.mechanism, verdict.outcome): verdict for verdict in stats.verdicts}
    assert found[mechanism, "violated"].code == "tokens_differ"
    if fallback == "baseline":
        assert ("all", "declined") in found

    # What broke stays out of use in this process, and what is left is checked on.
    answers, stats = run(engine, contract={"fallback": fallback, "shadow": 1.0}, **options)
    assert answers == plain
    assert not any(verdict.outcome == "violated" for verdict in stats.verdicts)
    assert (mechanism, "declined") in {(verdict.mechanism, verdict.outcome) for verdict in stats.verdicts}


@pytest.mark.parametrize("mechanism", LIES)
def test_a_lie_fails_the_job_where_the_contract_says_so(
    mechanism: str, tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie, options = LIES[mechanism]
    engine = load(tiny_llama_path)
    lie(monkeypatch)
    with pytest.raises(ContractViolated, match=f"{mechanism}: tokens_differ") as caught:
        run(engine, contract={"fallback": "fail", "shadow": 1.0}, **options)
    assert any(verdict.outcome == "violated" for verdict in caught.value.verdicts)


@pytest.mark.parametrize("mechanism", LIES)
def test_without_a_lie_all_shadows_agree(mechanism: str, tiny_llama_path: Path, plain: dict[int, Any]) -> None:
    answers, stats = run(load(tiny_llama_path), contract={"shadow": 1.0, "fallback": "fail"}, **LIES[mechanism][1])
    assert answers == plain
    assert stats.counters["shadow_rows"] == len(BODIES)
    assert {verdict.outcome for verdict in stats.verdicts} == {"held"}


@pytest.mark.parametrize("fallback", ["decline", "baseline", "fail"])
def test_a_run_that_is_decided_canonically_too_often_gives_the_rule_up(
    fallback: str, tiny_llama_path: Path, plain: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As coarse types would: everything is closer than the bound, and each choice reads its row again."""
    monkeypatch.setattr(generation_run, "LEAST_CHOICES", 8)
    monkeypatch.setattr(Bounds, "bound", lambda self, context: 1e3)
    engine = load(tiny_llama_path)
    assert engine._machine is not None
    engine._machine.is_exact = True
    if fallback == "fail":
        with pytest.raises(ContractViolated, match="canonical: not_exact"):
            run(engine, contract={"fallback": fallback})
        return
    answers, stats = run(engine, contract={"fallback": fallback})
    assert answers == plain
    assert 8 <= stats.counters["canonical_choices"] < stats.output_tokens
    outcome = "declined" if fallback == "decline" else "violated"
    assert ("canonical", outcome, "not_exact") in {(v.mechanism, v.outcome, v.code) for v in stats.verdicts}
