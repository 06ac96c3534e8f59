"""One shard's way through the scheduler: items in, answers out, the contract watched."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Literal

from pipeline.errors import InvalidValue, ItemError
from pipeline.ports import Emit, JsonObject, Progress, RunStats, ShouldStop, Started, WorkItem
from pipeline.specs.generate import LookupOptions, SamplingDefaults
from workers.engines.answers import error_answer
from workers.engines.batching.budget import LaneCost
from workers.engines.batching.canonical import one_row
from workers.engines.batching.decisions import DecisionLog
from workers.engines.batching.decoding import Advance
from workers.engines.batching.guessing import Guesser
from workers.engines.batching.lookup import PromptLookup
from workers.engines.batching.machine import Machine
from workers.engines.batching.rows import Row
from workers.engines.batching.scheduler import Scheduler
from workers.engines.batching.seams import Proposer
from workers.engines.batching.shadow import shadow_tokens
from workers.engines.chat import Dialogue
from workers.engines.contract import ContractWatch
from workers.engines.drafting import LoadedDrafter
from workers.engines.memory import held_bytes
from workers.engines.replies import Reply, open_reply
from workers.engines.requests import Role
from workers.engines.tally import Tally
from workers.engines.trace import Waits

#: Rows decoded together where the options do not say.
DEFAULT_WIDTH = 16

#: Share of a run's choices that may be made canonically, and choices after which it is judged.
MOST_CLOSE, LEAST_CHOICES = 0.05, 256

#: Seconds between two progress events while the engine works; a step that takes longer delays the next one.
PROGRESS_S = 0.5


class GenerationRun:
    """Answers one shard's items."""

    def __init__(
        self,
        machine: Machine,
        dialogue: Dialogue,
        drafter: LoadedDrafter | None,
        role: Role,
        options: JsonObject,
        watch: ContractWatch,
        emit: Emit,
    ) -> None:
        self._machine = machine
        self._dialogue = dialogue
        self._drafter = drafter
        self._role: Role = role
        self._options = options
        self._watch = watch
        self._emit = emit
        self._tally = Tally("decode")
        self._waits = Waits()
        self._replies: dict[int, Reply] = {}
        self._heard_at: dict[Row, float] = {}
        self._answered = 0
        self._progress_at = time.monotonic()
        machine.governor.log = DecisionLog()  # it keeps so many changes: those of other runs would fill it
        self._scheduler = self._make_scheduler()

    # --- the shard ---------------------------------------------------------------------------------------------------

    def prepare(self, items: Iterable[WorkItem], should_stop: ShouldStop) -> bool:
        """Check and tokenize; answers the bad ones at once. Returns whether it was told to stop."""
        defaults = SamplingDefaults(**self._options.get("sampling", {}))
        overflow = self._options.get("overflow", "error")
        rows: list[Row] = []
        for item in items:
            if should_stop():
                return True
            try:
                reply = open_reply(item, self._role, defaults, self._dialogue, overflow=overflow)
                self._check_tokens(reply)
            except ItemError as error:
                self._fail(item.index, error)
            except Exception as error:  # noqa: BLE001 - tokenizers and templates raise plain exceptions
                self._fail(item.index, ItemError(f"the prompt cannot be encoded: {error}", code="encode_failed"))
            else:
                self._replies[item.index] = reply
                rows.extend(reply.rows)
                self._tally.count("truncated", reply.truncated > 0)
                self._tally.count("truncated_tokens", reply.truncated)
            self._report_in_time("prefill")
        self._scheduler.add(rows)
        return False

    def decode(self, should_stop: ShouldStop) -> bool:
        """Step until every row is answered. Returns whether it was told to stop."""
        self._watch.ceiling("resident_bytes", held_bytes())
        while not self._scheduler.is_idle:
            if should_stop():
                return True
            before = self._tally.tokens
            for advance in self._scheduler.step():
                self._take(advance)
            self._watch.worked(self._tally.tokens - before)
            self._look_at_exactness()
            self._report_in_time("decode")
        rows = max(1, self._scheduler.most_rows)
        self._watch.ceiling("resident_bytes", self._scheduler.most_resident_bytes, rows=rows)
        self._watch.ceiling("kv_bytes", self._scheduler.most_cache_bytes, rows=rows)
        return False

    def report(self, phase: Literal["prefill", "decode"] = "decode") -> None:
        """Tokens, read and written, and items so far."""
        self._progress_at = time.monotonic()
        progress = self._tally.progress()
        self._emit(Progress(tokens=progress.tokens, items=self._answered, phase=phase))

    def stats(self, *, cancelled: bool) -> RunStats:
        """Token sums are of answered rows; a row that was cancelled is in none of them."""
        self._scheduler.tell(self._tally)
        self._tell_guessing()
        self._tally.count("peak_kv_bytes", self._scheduler.most_cache_bytes)
        return self._tally.stats(
            cancelled=cancelled, measures=self._waits.percentiles("itl_s"), verdicts=self._watch.verdicts()
        )

    def _tell_guessing(self) -> None:
        """What the governor decided in this run, when and why, belongs to the job's record; so does who failed."""
        for name, reason in self._scheduler.guess_failures.items():
            self._watch.declined(name, "failed", reason)
        for entry in self._machine.governor.log.entries:
            when = f"step {entry['step']}, {entry['width']} rows, {entry['context']} tokens of context"
            self._watch.held("governor", f"{entry['from']}_to_{entry['to']}", f"{when}: {entry['why']}")

    def _check_tokens(self, reply: Reply) -> None:
        """A token that a tokenizer has and its model has not would be read from beyond the model's table."""
        highest, known = max(reply.rows[0].prompt), self._machine.vocabulary
        if highest >= known:
            param = "messages" if self._role == "chat" else "prompt"
            raise InvalidValue(f"token {highest} of the prompt is none of the model's {known}", param=param)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _take(self, advance: Advance) -> None:
        """What one row did. A row that fails ends its item, and no other."""
        row, now = advance.row, time.monotonic()
        reply = self._replies.get(row.item)
        if reply is None:
            return
        if (before := self._heard_at.get(row)) is not None:
            for _ in advance.tokens:
                self._waits.add((now - before) / len(advance.tokens))
        self._heard_at[row] = now
        if advance.error is not None:
            self._scheduler.discard(reply.rows)
            self._fail(row.item, advance.error)
        elif row.reason is not None and self._stands(row) and reply.is_finished:
            self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        report_cache = bool(self._options.get("report_cache", False))
        try:
            answer = reply.answer(
                self._dialogue, self._role, str(self._options["model_name"]), report_cache=report_cache
            )
        except Exception as error:  # noqa: BLE001 - tokenizers raise plain exceptions
            known = error if isinstance(error, ItemError) else None
            unknown = ItemError(f"the answer cannot be decoded: {error}", code="decode_failed")
            self._fail(reply.index, known or unknown)
            return
        del self._replies[reply.index]
        self._tally.add_answer(answer)
        self._tally.count("unparsed_tool_calls", reply.unparsed_calls)
        self._tally.count("dropped_tool_calls", reply.dropped_calls)
        self._tally.count("cached_tokens", sum(row.cached_tokens for row in reply.rows))
        self._answered += 1
        self._emit(answer)

    def _fail(self, index: int, error: ItemError) -> None:
        self._replies.pop(index, None)
        self._answered += 1
        self._emit(error_answer(index, error))

    def _started(self, rows: Sequence[Row]) -> None:
        self._emit(Started(tuple(dict.fromkeys(row.item for row in rows))))

    def _report_in_time(self, phase: Literal["prefill", "decode"]) -> None:
        if time.monotonic() - self._progress_at >= PROGRESS_S:
            self.report(phase)

    # --- the contract ------------------------------------------------------------------------------------------------

    def _stands(self, row: Row) -> bool:
        """Whether a finished row may be answered; one whose shadow differs is decoded again."""
        mechanism = row.helped_by or ("batching" if self._scheduler.width > 1 else None)
        if mechanism is None or not self._watch.shadow_due(mechanism, len(row.prompt) + len(row.tokens)):
            return True
        with self._tally.call():
            plain = shadow_tokens(self._machine, row)
        self._tally.count("shadow_rows")
        if self._watch.compared(mechanism, row.tokens, plain, is_greedy=row.sampling.is_greedy) is None:
            return True
        self._give_up_what_is_not_allowed()
        return False

    def _give_up_what_is_not_allowed(self) -> None:
        """After a violation: what is left is decided by the watch, and all that is not answered yet begins again."""
        if not self._watch.allows("batching"):
            self._scheduler.narrow(1)
        if not self._watch.allows("prefix_cache"):
            self._scheduler.without_prefixes()
        self._scheduler.keep_guessers([name for name in ("lookup", "draft") if self._watch.allows(name)])
        self._scheduler.restart()
        for row in [row for reply in self._replies.values() for row in reply.rows]:
            if row.reason is not None:
                self._scheduler.take_back(row)

    # --- what is used ------------------------------------------------------------------------------------------------

    def _make_scheduler(self) -> Scheduler:
        options, watch, machine = self._options, self._watch, self._machine
        width = int(options.get("width", DEFAULT_WIDTH))
        if machine.width_limit is not None and machine.width_limit < width:
            self._tally.count("width_declined")
            watch.declined("batching", "probe_failed", "rows do not keep their logits in a batch: one row at a time")
        width = width if watch.allows("batching") else 1
        if not machine.is_exact:
            width = self._without_exactness(width)
        guesser = self._make_guesser()
        drafts = guesser is not None and "draft" in guesser.names
        beside = self._drafter.cost if drafts and self._drafter is not None else LaneCost()
        return Scheduler(
            machine,
            width=width,
            tally=self._tally,
            budget=machine.budget.of_job(watch.limit("resident_bytes"), watch.limit("kv_bytes"), beside),
            guesser=guesser,
            shares_prefixes=bool(options.get("prefix_cache", True)) and watch.allows("prefix_cache"),
            on_start=self._started,
        )

    def _look_at_exactness(self) -> None:
        """Give the canonical rule up where it is asked for too often: each time it reads all of a row again."""
        said, close = self._tally.counted("decode_tokens"), self._tally.counted("canonical_choices")
        if not self._machine.is_exact or said < LEAST_CHOICES or close <= MOST_CLOSE * said:
            return
        self._machine.is_exact = False
        if self._without_exactness(self._scheduler.width) == 1:
            self._give_up_what_is_not_allowed()

    def _without_exactness(self, width: int) -> int:
        """Rows that may go on together without the canonical rule: it costs too much, or misses a model's experts."""
        reason = "too many choices are closer than rounding in this type, or an expert router cannot be watched"
        contract = self._watch.contract
        if contract.correctness == "greedy_identical" and contract.fallback != "decline":
            self._watch.mismatch("canonical", "not_exact", reason)
            return 1
        self._watch.declined("canonical", "not_exact", f"{reason}: same tokens are a measured rate here")
        return width

    def _make_guesser(self) -> Guesser | None:
        """Who may guess. A cache that cannot go back refuses all guesses, which is counted."""
        asked = self._options.get("accelerate", "off")
        if asked == "off":
            return None
        if not one_row(self._machine.model).can_rewind:
            self._tally.count("guessing_refused")
            name = "draft" if asked == "draft" else "lookup"
            self._watch.declined(name, "cannot_rewind", "the model's state cannot go back over a wrong guess")
            return None
        proposers: list[tuple[Proposer, int]] = []
        if asked in ("auto", "lookup") and self._watch.allows("lookup"):
            lookup = LookupOptions(**self._options.get("lookup", {}))
            proposers.append((PromptLookup(lookup, adaptive=asked != "auto"), lookup.max_draft))
        if asked in ("auto", "draft") and self._watch.allows("draft"):
            proposers += self._make_drafter(asked)
        governor = self._machine.governor if asked == "auto" else None
        return (
            Guesser(proposers, governor, self._machine.vocabulary, self._dialogue.context_length) if proposers else None
        )

    def _make_drafter(self, asked: str) -> list[tuple[Proposer, int]]:
        """The second model, unless it cannot guess here; ``auto`` keeps to what reproduces the seeded stream."""
        given = self._options.get("draft")
        if self._drafter is None or given is None:
            return []
        acceptance = given.get("acceptance", "sampler_match")
        if not self._drafter.can_rewind:
            self._watch.declined("draft", "cannot_rewind", "the drafter's state cannot go back over a wrong guess")
        elif acceptance == "stochastic" and (asked == "auto" or not self._watch.permits("distribution_preserving")):
            self._watch.declined(
                "draft", "not_seed_stable", "stochastic acceptance does not reproduce the seeded stream"
            )
        else:
            return [(self._drafter.proposer(given["tokens"], acceptance), given["tokens"])]
        return []
