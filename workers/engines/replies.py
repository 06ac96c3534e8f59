"""One item from its body to its rows, and from its finished rows to its answer. Knows nothing about batches."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import InvalidValue
from pipeline.ports import Answer, JsonObject, WorkItem
from pipeline.specs.generate import SamplingDefaults
from workers.engines.batching.rows import Row
from workers.engines.batching.seams import LogitsRule
from workers.engines.chat import Dialogue
from workers.engines.logprobs import chat_logprobs, completion_logprobs
from workers.engines.messages import Message, read_message
from workers.engines.overflow import read_overflow
from workers.engines.penalties import BiasRule, PenaltyRule, RuleChain
from workers.engines.requests import GenerationRequest, Role, parse_request
from workers.engines.stopping import Scanner, StopScanner
from workers.engines.turns import TurnScanner


@dataclass(slots=True)
class Reply:
    """An item in flight.

    Attributes:
        index: the item's place in the shard.
        seed: the item's own seed, from which the ids of its calls follow.
        rows: one per choice, in order; all have the same prompt.
        truncated: prompt tokens that were cut.
        unparsed_calls: texts between tool markers that are no calls; known once it is answered.
        dropped_calls: calls after the first where only one was allowed; known once it is answered.
    """

    index: int
    seed: int
    request: GenerationRequest
    rows: tuple[Row, ...]
    truncated: int = 0
    unparsed_calls: int = 0
    dropped_calls: int = 0

    @property
    def is_finished(self) -> bool:
        return all(row.reason is not None for row in self.rows)

    def answer(self, dialogue: Dialogue, role: Role, model_name: str, *, report_cache: bool) -> Answer:
        """OpenAI's object without ``id`` and ``created``, which belong to the job and are added when it is finalized.

        ``report_cache`` adds how many prompt tokens came from a cache, which depends on the run.

        Raises:
            ItemError: ``decode_failed``.
        """
        messages = [read_message(row, self.request, dialogue, self.seed) for row in self.rows]
        self.unparsed_calls = sum(message.unparsed for message in messages)
        self.dropped_calls = sum(message.dropped for message in messages)
        usage = self._usage(report_cache)
        if role == "chat" and dialogue.has_thinking:
            reasoning = sum(message.reasoning_tokens for message in messages)
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        body = {
            "object": "chat.completion" if role == "chat" else "text_completion",
            "model": model_name,
            "choices": [
                _choice(row, message, dialogue, role) for row, message in zip(self.rows, messages, strict=True)
            ],
            "usage": usage,
        }
        tokens = tuple(tuple(row.tokens) for row in self.rows)
        return Answer(index=self.index, body=body, usage=usage, measures=self._measures(), tokens=tokens)

    def _usage(self, report_cache: bool) -> JsonObject:
        """The prompt counts once, however many choices there are."""
        prompt, completion = len(self.rows[0].prompt), sum(len(row.tokens) for row in self.rows)
        usage: JsonObject = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if report_cache:
            # The least, since the item's other choices find the prompt that its first has read.
            usage["prompt_tokens_details"] = {"cached_tokens": min(row.cached_tokens for row in self.rows)}
        return usage

    def _measures(self) -> dict[str, float]:
        began = min(row.admitted_at for row in self.rows)
        measures = {
            "ttft_s": min(row.first_at for row in self.rows) - began,
            "request_s": max(row.last_at for row in self.rows) - began,
        }
        waits = sum(len(row.tokens) - 1 for row in self.rows)
        if waits > 0:
            measures["itl_mean_s"] = sum(row.last_at - row.first_at for row in self.rows) / waits
        return measures


def open_reply(
    item: WorkItem, role: Role, defaults: SamplingDefaults, dialogue: Dialogue, *, overflow: str = "error"
) -> Reply:
    """Check an item's body, encode its prompt, and make its rows.

    Args:
        defaults: the job's values for what the item does not say.
        overflow: ``error``, ``truncate_left`` or ``truncate_middle``.

    Raises:
        ItemError: what is wrong with the item, with its code and parameter.
    """
    request = parse_request(item, role, defaults)
    if request.logit_bias and max(request.logit_bias) >= dialogue.vocabulary.size:
        message = f"token {max(request.logit_bias)} is none of the model's {dialogue.vocabulary.size}"
        raise InvalidValue(message, param="logit_bias")
    whole = dialogue.read(request)
    prompt = dialogue.fit(whole, request, read_overflow(overflow))
    rows = tuple(
        Row(
            item=item.index,
            choice=choice,
            prompt=prompt,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            seed=request.seed,
            rule=_rule(request, prompt, dialogue),
            scanner=_scanner(request, prompt, dialogue),
            top_logprobs=request.top_logprobs,
        )
        for choice in range(request.n)
    )
    return Reply(item.index, item.seed, request, rows, truncated=len(whole) - len(prompt))


def _rule(request: GenerationRequest, prompt: list[int], dialogue: Dialogue) -> LogitsRule | None:
    """Penalties first, since they go by the sign of the model's logits; a grammar last, since it has the last word."""
    rules: list[LogitsRule] = []
    if not request.penalties.is_idle:
        rules.append(PenaltyRule(request.penalties, prompt))
    if request.logit_bias:
        rules.append(BiasRule(request.logit_bias))
    if request.wants_json:
        rules.append(dialogue.grammars.json_rule(request.schema, dialogue.thought(prompt)))
    if request.must_call:
        rules.append(dialogue.call_rule(request, prompt))
    if len(rules) > 1:
        return RuleChain(rules)
    return rules[0] if rules else None


def _scanner(request: GenerationRequest, prompt: list[int], dialogue: Dialogue) -> Scanner | None:
    one_call = bool(request.tools) and not request.parallel_tool_calls
    turn = dialogue.turn(request, prompt)
    if turn is not None and (request.stop or one_call):
        return TurnScanner(turn, request.stop, one_call=one_call)
    return StopScanner(request.stop, dialogue.decode) if request.stop else None


def _choice(row: Row, message: Message, dialogue: Dialogue, role: Role) -> JsonObject:
    choice: JsonObject = {
        "index": row.choice,
        "logprobs": _logprobs(row, message, dialogue, role),
        "finish_reason": message.reason,
    }
    if role == "chat":
        choice["message"] = message.body()
    else:
        choice["text"] = message.content
    return choice


def _logprobs(row: Row, message: Message, dialogue: Dialogue, role: Role) -> JsonObject | None:
    if row.top_logprobs is None:
        return None
    noted = row.logprobs[: message.text_tokens]
    token_bytes = dialogue.vocabulary.token_bytes
    if role == "chat":
        return chat_logprobs(noted, token_bytes)
    return completion_logprobs(noted, token_bytes, dialogue.decode)
