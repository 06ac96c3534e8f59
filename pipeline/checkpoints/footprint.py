"""What a model needs of memory, before it is loaded: weights, what rows keep, what one forward takes. Pure arithmetic.

Sizes of caches are upper bounds of what mlx-lm allocates. What one forward takes is an estimate; it was compared with
peaks that MLX reports on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.checkpoints.caches import read_caches
from pipeline.checkpoints.config_keys import Config, Keys, MissingKey
from pipeline.checkpoints.layer_kinds import LayerCache

#: Caches grow by this many tokens at once, so one may hold as many less one beyond what is in it.
CACHE_STEP = 256

#: Whether the newest tokens can be taken back out: always, until the smallest window is full, never.
Trimming = Literal["always", "within_window", "never"]


@dataclass(frozen=True, slots=True)
class Widths:
    """Numbers per token that a forward makes at its widest places; 0 for what no file states.

    ``queries``, ``keys_values``: of one layer's attention. ``inner``: of one layer's feed-forward part, all experts
    that a token goes through.
    """

    hidden: int = 0
    heads: int = 0
    queries: int = 0
    keys_values: int = 0
    inner: int = 0
    vocabulary: int = 0


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of one model and its rows.

    Attributes:
        family: as mlx-lm names it.
        weights_bytes: as they lie in memory while it works.
        dtype_bytes: size of a number of the type it computes in.
        caches: what a row keeps, one entry per cache.
        unknown: what these figures rest on and no file states, in words; look here before believing them.
    """

    family: str
    weights_bytes: int
    dtype_bytes: int
    caches: tuple[LayerCache, ...]
    widths: Widths
    unknown: tuple[str, ...]

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token in the layers that keep all tokens."""
        return self.dtype_bytes * sum(one.token_values for one in self.caches if one.window is None)

    @property
    def window_bytes(self) -> int:
        """What a row keeps in layers with a window once the windows are full."""
        return self.dtype_bytes * sum(one.token_values * one.window for one in self.caches if one.window is not None)

    @property
    def state_bytes(self) -> int:
        """Recurrent state of a row, the same at any length."""
        return sum(self._state(one) for one in self.caches)

    @property
    def trimming(self) -> Trimming:
        if self.state_bytes:
            return "never"
        return "always" if self.smallest_window is None else "within_window"

    @property
    def smallest_window(self) -> int | None:
        return min((one.window for one in self.caches if one.window is not None), default=None)

    def row_bytes(self, tokens: int, *, chunk: int = 1) -> int:
        """Most that a row of ``tokens`` keeps, when its last forward read ``chunk`` of them."""
        return sum(self._cache(one, tokens, chunk) for one in self.caches)

    def batch_bytes(self, width: int, tokens: int, *, chunk: int = 1) -> int:
        """The same for ``width`` rows: shorter ones are padded, so ``tokens`` are the longest row's."""
        return width * self.row_bytes(tokens, chunk=chunk)

    def step_bytes(
        self,
        rows: int,
        columns: int,
        *,
        context: int,
        logits_columns: int = 1,
        fused_attention: bool = False,
    ) -> int:
        """Estimate of what one forward over ``rows`` x ``columns`` tokens takes beside weights and caches.

        ``context``: tokens that each of them may look at. ``logits_columns``: columns of a row whose logits are asked
        for. ``fused_attention`` (Metal) makes no (rows, heads, columns, context) scores. A cache that grows is copied,
        one layer at a time.
        """
        size, widths = self.dtype_bytes, self.widths
        per_token = 5 * widths.hidden + 2 * widths.queries + 2 * widths.keys_values + 3 * widths.inner
        seen = rows * columns * context
        scores = 0 if fused_attention else 2 * seen * widths.heads * size
        grown = rows * max((self._cache(one, context, columns) for one in self.caches), default=0)
        logits = rows * logits_columns * widths.vocabulary * (size + 8)
        return max(rows * columns * size * per_token + scores + seen + grown, logits)

    def rows_within(self, budget_bytes: int, tokens: int, *, fused_attention: bool = False) -> int:
        """Most rows of ``tokens`` that weights, caches and one decoding step leave room for; 0 where none fits."""
        step = self.step_bytes(1, 1, context=tokens, fused_attention=fused_attention)
        return max(0, budget_bytes - self.weights_bytes) // max(1, self.row_bytes(tokens) + step)

    def _cache(self, one: LayerCache, tokens: int, chunk: int) -> int:
        allocated = tokens + CACHE_STEP - 1
        if one.window is not None:
            allocated = min(allocated, one.window + chunk - 1)
        return self.dtype_bytes * one.token_values * allocated + self._state(one)

    def _state(self, one: LayerCache) -> int:
        return self.dtype_bytes * one.state_values + 4 * one.float32_values


def footprint_of(config: Config, *, dtype_bytes: int, weights_bytes: int) -> Footprint:
    """From a parsed ``config.json``; never raises: what it does not find is in ``unknown``."""
    reading = read_caches(config)
    keys = Keys(config)
    widths, missing = _widths(keys)
    unknown = list(reading.unknown)
    if missing:
        unknown.append(f"what a forward takes: config.json has no usable {', '.join(missing)}")
    return Footprint(reading.family, weights_bytes, dtype_bytes, reading.caches, widths, tuple(unknown))


def _widths(keys: Keys) -> tuple[Widths, list[str]]:
    missing: list[str] = []

    def number(name: str, default: int | None = None) -> int:
        try:
            return keys.number(name, default)
        except MissingKey:
            missing.append(name)
            return 0

    hidden, vocabulary = number("hidden_size"), number("vocab_size")
    heads, queries, keys_values = 0, 0, 0
    if keys.get("num_attention_heads"):  # a recurrent family has none
        heads = number("num_attention_heads")
        rotated = number("qk_rope_head_dim", 0) if keys.get("kv_lora_rank") else 0
        per_head = (number("head_dim") if keys.get("head_dim") else hidden // max(1, heads)) + rotated
        queries, keys_values = heads * per_head, 2 * number("num_key_value_heads", heads) * per_head
    return Widths(hidden, heads, queries, keys_values, _inner(keys, hidden), vocabulary), missing


def _inner(keys: Keys, hidden: int) -> int:
    """Where a family's files leave it out it is four times the hidden width."""
    dense = [one for name in ("intermediate_size", "mamba_d_ssm") if type(one := keys.get(name)) is int]
    chosen, expert = keys.get("num_experts_per_tok"), keys.get("moe_intermediate_size") or keys.get("intermediate_size")
    if type(chosen) is int and type(expert) is int:
        shared = keys.get("n_shared_experts", 0)
        dense.append((chosen + (shared if type(shared) is int else 0)) * (expert + hidden // 3))
    return max(dense, default=4 * hidden)
