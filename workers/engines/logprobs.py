"""Log probabilities in OpenAI's two shapes: of a chat's answer, and of a completion's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pipeline.ports import JsonObject
from workers.engines.batching.rows import TokenLogprob
from workers.engines.stopping import Decode, GrowingText

TokenBytes = Callable[[int], bytes]


def chat_logprobs(noted: Sequence[TokenLogprob], token_bytes: TokenBytes) -> JsonObject:
    """``content`` has an entry for each token. Tokens that a rule excluded are in no ``top_logprobs``."""

    def entry(token: int, logprob: float) -> JsonObject:
        own = token_bytes(token)
        return {"token": show_bytes(own), "logprob": logprob, "bytes": list(own)}

    content = [
        {
            **entry(one.token, one.logprob),
            "top_logprobs": [entry(token, logprob) for token, logprob in one.top if math.isfinite(logprob)],
        }
        for one in noted
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(noted: Sequence[TokenLogprob], token_bytes: TokenBytes, decode: Decode) -> JsonObject:
    """Parallel arrays; ``text_offset`` counts characters from the beginning of the answer.

    The chosen token is among its own ``top_logprobs``, as in OpenAI's API; where none were asked for they are null.
    """
    tops = [
        {
            show_bytes(token_bytes(token)): logprob
            for token, logprob in (*one.top, (one.token, one.logprob))
            if math.isfinite(logprob)
        }
        for one in noted
    ]
    return {
        "tokens": [show_bytes(token_bytes(one.token)) for one in noted],
        "token_logprobs": [one.logprob for one in noted],
        "top_logprobs": tops if any(one.top for one in noted) else None,
        "text_offset": offsets([one.token for one in noted], decode),
    }


def offsets(tokens: Sequence[int], decode: Decode) -> list[int]:
    """At which character each token's own begin; all tokens of one character have its place."""
    growing = GrowingText(decode)
    places = []
    for token in tokens:
        places.append(len(growing.text))
        growing.add(token)
    return places


def show_bytes(own: bytes) -> str:
    """A token's text; where it holds a part of a character, its bytes written out."""
    try:
        return own.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)
