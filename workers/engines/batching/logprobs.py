"""Log probabilities as answers report them. Their last digits depend on the batch: they are no part of what is promised."""

from __future__ import annotations

import numpy as np

from workers.engines.batching.rows import Row, TokenLogprob
from workers.engines.batching.seams import Logits


def note_logprob(row: Row, logits: Logits, token: int) -> None:
    """Note the chosen token's, and the likeliest tokens', natural log probability before temperature.

    Args:
        logits: (V,) after the row's rule.
    """
    best = float(logits.max())
    total = best + float(np.log(np.exp(logits - best, dtype=np.float64).sum()))
    count = min(row.top_logprobs or 0, len(logits))
    top: list[int] = []
    if count:
        likely = np.argpartition(-logits, count - 1)[:count]
        top = sorted(likely.tolist(), key=lambda token: (-float(logits[token]), token))
    row.logprobs.append(
        TokenLogprob(token, float(logits[token]) - total, tuple((each, float(logits[each]) - total) for each in top))
    )
