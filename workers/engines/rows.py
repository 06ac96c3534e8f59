"""One item while it is being generated, and the answer it becomes. Knows nothing about the batch it is in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipeline.ports import Answer, JsonObject
from workers.engines.chat import Dialogue
from workers.engines.requests import GenerationRequest, Role
from workers.engines.stopping import StopScanner, cut_at_stop

FinishReason = Literal["stop", "length"]


@dataclass(slots=True)
class Row:
    """An item in flight; times are seconds of CLOCK_MONOTONIC, 0 until they happen.

    Attributes:
        prompt: prompt tokens.
        prefilled: how many of them the model has read.
        tokens: answer tokens so far, the end token included.
        admitted_at: when the row entered the batch; its time to first token counts from here.
    """

    index: int
    request: GenerationRequest
    prompt: list[int]
    scanner: StopScanner | None
    prefilled: int = 0
    tokens: list[int] = field(default_factory=list)
    admitted_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def expected_tokens(self) -> int:
        """Most tokens this row can cost."""
        return len(self.prompt) + self.request.max_tokens

    def add(self, token: int, now: float, reason: str | None) -> FinishReason | None:
        """Append a token; returns why the row is finished, None while it is not.

        ``reason`` is the batch's own verdict: ``stop`` for an end token, ``length`` at the row's limit.
        """
        self.tokens.append(token)
        self.last_at = now
        if len(self.tokens) == 1:
            self.first_at = now
        if reason == "stop":
            return "stop"
        if self.scanner is not None and self.scanner.add(token):
            return "stop"
        return "length" if reason == "length" else None

    def answer(self, reason: FinishReason, dialogue: Dialogue, role: Role, model_name: str, ended: bool) -> Answer:
        """The finished item. ``ended``: the last token is an end token, which counts but is not text."""
        text = dialogue.decode(self.tokens[:-1] if ended else self.tokens)
        kept = cut_at_stop(text, self.request.stop)
        if len(kept) < len(text):
            reason = "stop"
        usage = {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(self.tokens),
            "total_tokens": len(self.prompt) + len(self.tokens),
        }
        decode_s = self.last_at - self.first_at
        measures = {
            "ttft_s": self.first_at - self.admitted_at,
            "request_s": self.last_at - self.admitted_at,
        }
        if len(self.tokens) > 1:
            measures["itl_mean_s"] = decode_s / (len(self.tokens) - 1)
        return Answer(
            index=self.index,
            body=completion_body(role, model_name, kept, reason, usage),
            usage=usage,
            measures=measures,
            tokens=(tuple(self.tokens),),
        )


def completion_body(role: Role, model_name: str, text: str, reason: FinishReason, usage: JsonObject) -> JsonObject:
    """OpenAI's object without ``id`` and ``created``, which belong to the job and are added when it is finalized."""
    choice: JsonObject = {"index": 0, "logprobs": None, "finish_reason": reason}
    if role == "chat":
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    kind = "chat.completion" if role == "chat" else "text_completion"
    return {"object": kind, "model": model_name, "choices": [choice], "usage": usage}
