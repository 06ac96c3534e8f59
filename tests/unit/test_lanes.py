"""Rows in lanes against mlx-lm's own single-row path: whatever comes, goes or goes back beside a row, it stays itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache

from tests.fixtures.tiny_models import CONFIGS, RECURRENT, VOCABULARY, WINDOW, plain_tokens, shared_model
from workers.engines.batching.budget import STEP_TOKENS
from workers.engines.batching.lane_caches import LaneState
from workers.engines.batching.lanes import CannotBatch, Lanes, SingleLane

NAMES = sorted(CONFIGS)
BRANCHING = [name for name in NAMES if name not in RECURRENT]
WINDOWED = [name for name in NAMES if "sliding_window" in CONFIGS[name]]

#: Columns of the widest forward, and so how far a windowed lane may go back.
SPARE = 6

#: Rounding of float32 in these models is below 1e-4 of logits of this size; a wrong key is far above.
CLOSE = 2e-3

Floats = npt.NDArray[np.float32]


def plain_logits(model: Any, tokens: Sequence[int]) -> Floats:
    """(tokens, V): behind each token, by mlx-lm's caches of one row."""
    logits = model(mx.array([list(tokens)]), cache=make_prompt_cache(model))
    return np.array(logits[0].astype(mx.float32))


def text(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, length).tolist()


def assert_close(got: mx.array | Floats, expected: Floats, what: object = "") -> None:
    np.testing.assert_allclose(
        np.array(got), expected, atol=CLOSE * max(1.0, float(np.abs(expected).max())), err_msg=str(what)
    )


class Crowd:
    """Rows that are told what to say, so that each of their logits is known beforehand."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model = model
        self.random = random.Random(seed)
        self.lanes = Lanes(model, spare=SPARE)
        self.lanes.open(0)
        self.texts: list[list[int]] = []
        self.expected: list[Floats] = []
        self.compared = 0

    def join(self, lengths: Sequence[int], rest: int = 60) -> None:
        """Prompts that are read together, but for what cannot be padded, and join one after the other."""
        texts = [text(length + rest, self.random.randrange(1 << 30)) for length in lengths]
        groups = [[each] for each in range(len(texts))] if not self.lanes.can_rewind else [list(range(len(texts)))]
        for group in groups:
            reading = Lanes(self.model)
            reading.open(len(group))
            while any(left := [lengths[each] - done for each, done in zip(group, reading.lengths, strict=True)]):
                piece = [
                    texts[each][done : done + min(7, more)]
                    for each, done, more in zip(group, reading.lengths, left, strict=True)
                ]
                reading.forward(piece)
                reading.advance([len(tokens) for tokens in piece])
            for lane, each in enumerate(group):
                self.lanes.adopt(reading, lane)
                self.texts.append(texts[each])
                self.expected.append(plain_logits(self.model, texts[each]))

    def step(self, most: int) -> None:
        """Each row reads some of its text and, behind that, what it takes back again."""
        kept, inputs = [], []
        for row, length in zip(self.texts, self.lanes.lengths, strict=True):
            columns = self.random.randint(1, most)
            keep = self.random.randint(1, columns)
            right = row[length : length + keep]
            inputs.append([*right, *text(columns - len(right), self.random.randrange(1 << 30))])
            kept.append(len(right))
        logits = self.lanes.forward(inputs)
        for lane, count in enumerate(kept):
            start = self.lanes.lengths[lane]
            assert_close(logits[lane, :count], self.expected[lane][start : start + count], (lane, start, inputs[lane]))
            self.compared += count
        self.lanes.advance(kept)

    def leave(self, lane: int) -> None:
        self.lanes.drop(lane)
        for rows in (self.texts, self.expected):
            rows[lane] = rows[-1]
            rows.pop()

    def leave_done(self) -> None:
        for lane in reversed(range(len(self.texts))):
            if self.lanes.lengths[lane] > len(self.texts[lane]) - SPARE:
                self.leave(lane)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_come_go_and_go_back_stay_themselves(name: str) -> None:
    crowd = Crowd(shared_model(name), seed=1)
    most = SPARE if crowd.lanes.can_rewind else 1
    crowd.join([5, 30, 1])
    for turn in range(30):
        crowd.step(most if turn % 4 else 1)
        crowd.leave_done()
        if turn in (2, 5, 20):
            crowd.join([2, 3 * WINDOW, 9][: 1 + turn % 3])
        if turn == 8:  # one whose lane is longer than a step, so that lanes grow, and shrink again
            crowd.join([STEP_TOKENS + 9], rest=20)
        if turn in (4, 12, 13) and len(crowd.texts) > 1:
            crowd.leave(crowd.random.randrange(len(crowd.texts)))
        if not crowd.texts:
            crowd.join([4, 4])
    assert crowd.compared > 100
    assert not crowd.lanes.can_rewind or max(crowd.lanes.lengths, default=0) > WINDOW + SPARE


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_5", "glm4_moe_lite"])
def test_level_rows_are_read_as_ragged_ones(name: str) -> None:
    """Rows that stand at one place take another way through the models: a plain offset and no mask."""
    crowd = Crowd(shared_model(name), seed=2)
    crowd.join([WINDOW - 2] * 3)
    for _ in range(5):
        crowd.step(1)
    crowd.join([WINDOW + 3])
    crowd.step(1)
    assert len(set(crowd.lanes.lengths)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_mlx_lm(name: str) -> None:
    model = shared_model(name)
    prompts = [text(length, length) for length in (5, 40, 1, 17, 9)]
    lanes = Lanes(model, spare=1)
    lanes.open(0)
    said: list[list[int]] = [[] for _ in prompts]
    waiting, rows = list(range(len(prompts))), []
    while waiting or rows:
        for row in waiting[:2]:
            reading = Lanes(model)
            reading.open(1)
            if prompts[row][:-1]:
                reading.forward([prompts[row][:-1]])
                reading.advance([len(prompts[row]) - 1])
            lanes.adopt(reading, 0)
            rows.append(row)
        del waiting[:2]
        logits = lanes.forward([[[*prompts[row], *said[row]][-1]] for row in rows])
        lanes.advance([1] * len(rows))
        for row, token in zip(rows, mx.argmax(logits[:, 0], axis=-1).tolist(), strict=True):
            said[row].append(token)
        for lane in reversed(range(len(rows))):
            if len(said[rows[lane]]) == 24:
                lanes.drop(lane)
                rows[lane] = rows[-1]
                rows.pop()
    assert said == [plain_tokens(model, prompt, 24) for prompt in prompts]


@pytest.mark.parametrize("name", BRANCHING)
def test_rows_branch_from_pieces_of_a_prefix(name: str) -> None:
    model = shared_model(name)
    prefix, ends = text(50, 1), [text(length, length) for length in (3, 30)]
    source = Lanes(model)
    source.open(1)
    source.forward([[*prefix, 1, 2, 3]])
    source.advance([len(prefix) + 3])
    pieces = [source.segments(0, 0, 20), source.segments(0, 20, 50)]
    del source
    lanes = Lanes(model)
    lanes.open(2)
    for lane in range(2):
        for piece in pieces:
            lanes.paste(lane, piece)
    assert lanes.lengths == [50, 50]
    logits = lanes.forward([[*ends[0], *[0] * 27], ends[1]])
    lanes.advance([3, 30])
    for lane, end in enumerate(ends):
        expected = plain_logits(model, [*prefix, *end])[50:]
        assert_close(logits[lane, : len(end)], expected)
    # What one row wrote behind the prefix is not seen by one that branches later.
    later = Lanes(model, spare=SPARE)
    later.open(0)
    third = Lanes(model)
    third.open(1)
    for piece in pieces:
        third.paste(0, piece)
    later.adopt(third, 0)
    assert_close(later.forward([[7]])[0], plain_logits(model, [*prefix, 7])[50:])


@pytest.mark.parametrize("name", BRANCHING)
@pytest.mark.parametrize("length", [10, 3 * WINDOW])
def test_a_row_goes_on_from_what_was_read_elsewhere(name: str, length: int) -> None:
    """The other row keeps its own keys, and what was wrong in the replaced one is gone."""
    model = shared_model(name)
    right, wrong, other = text(length + 5, 1), text(length, 2), text(22, 3)
    lanes = Lanes(model, spare=SPARE)
    lanes.open(0)
    for tokens in (other[:20], wrong):
        reading = Lanes(model)
        reading.open(1)
        reading.forward([tokens])
        reading.advance([len(tokens)])
        lanes.adopt(reading, 0)
    fresh = Lanes(model)
    fresh.open(1)
    fresh.forward([right[:length]])
    fresh.advance([length])
    lanes.replace(1, fresh)
    for step in range(2):
        logits = lanes.forward([[other[20 + step]], [right[length + step]]])
        lanes.advance([1, 1])
        assert_close(logits[0], plain_logits(model, other)[20 + step : 21 + step])
        assert_close(logits[1], plain_logits(model, right)[length + step : length + step + 1])


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2", "lfm2"])
def test_one_lane_over_mlx_lms_own_cache(name: str) -> None:
    model = shared_model(name)
    lane = SingleLane(model)
    for prompt in (text(20, 1), text(1, 2)):
        reading = SingleLane(model)
        reading.open(1)
        if prompt[:-1]:
            reading.forward([prompt[:-1]])
            reading.advance([len(prompt) - 1])
        lane.adopt(reading, 0)
        assert list(lane.lengths) == [len(prompt) - 1]
        said = []
        for _ in range(WINDOW):
            logits = lane.forward([[[*prompt, *said][-1]]])
            lane.advance([1])
            said.append(int(mx.argmax(logits[0, -1]).item()))
        assert said == plain_tokens(model, prompt, WINDOW)
        assert lane.nbytes > 0
        lane.drop(0)
        assert len(lane) == lane.nbytes == 0


@pytest.mark.parametrize(
    "cache", [lambda: RotatingKVCache(32, keep=4), QuantizedKVCache], ids=["kept beginning", "packed"]
)
def test_caches_without_lanes_are_refused(cache: Any) -> None:
    class Odd:
        def make_cache(self) -> list[Any]:
            return [KVCache(), cache()]

    with pytest.raises(CannotBatch, match="has no form for several rows"):
        Lanes(Odd())


@pytest.mark.parametrize("name", NAMES)
def test_what_lanes_can_do_follows_from_their_caches(name: str) -> None:
    kept, ring = Lanes(shared_model(name)), Lanes(shared_model(name), spare=SPARE)
    assert kept.can_rewind == ring.can_rewind == (name not in RECURRENT)
    assert kept.can_branch == (name not in RECURRENT)
    assert ring.can_branch == (name not in RECURRENT and name not in WINDOWED)


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "lfm2", "mamba2"])
def test_memory_is_given_back_when_rows_leave(name: str) -> None:
    crowd = Crowd(shared_model(name), seed=3)
    crowd.join([3 * STEP_TOKENS, 5, 5, 5, 5], rest=9)
    crowd.step(1)
    full = crowd.lanes.nbytes
    crowd.leave(0)
    crowd.leave(0)
    crowd.leave(0)
    crowd.step(1)
    assert 0 < crowd.lanes.nbytes < full / 2
    crowd.leave(0)
    crowd.leave(0)
    assert crowd.lanes.nbytes == 0
    crowd.join([7, 3])
    crowd.step(1)


@pytest.mark.parametrize("name", NAMES)
def test_cost_is_what_lanes_take(name: str) -> None:
    model = shared_model(name)
    lanes = Lanes(model, spare=SPARE)
    lanes.open(2)
    lanes.forward([text(5, 1), text(5, 2)])
    lanes.advance([5, 5])
    longer = Lanes(model, spare=SPARE)
    longer.open(3)
    for _ in range(2 * STEP_TOKENS // SPARE + 1 if name in WINDOWED else 1):
        columns = SPARE if name in WINDOWED else 2 * STEP_TOKENS + SPARE
        longer.forward([text(columns, lane) for lane in range(3)])
        longer.advance([columns] * 3)
    assert longer.nbytes == 3 * lanes.cost.lane_bytes(2 * STEP_TOKENS + SPARE)


def test_a_windowed_layer_takes_no_more_than_its_window() -> None:
    lanes = Lanes(shared_model("gemma3_text"), spare=SPARE)
    lanes.open(1)
    sizes = []
    for _ in range(3 * STEP_TOKENS // SPARE):
        lanes.forward([text(SPARE, 1)])
        lanes.advance([SPARE])
        sizes.append(sum(layer.nbytes for layer in lanes._kv if layer.window is not None))
    assert sizes[-1] == sizes[0]


def test_states_that_nobody_wrote_are_zeros_beside_others() -> None:
    empty, written, state = LaneState(2), LaneState(2), LaneState(2)
    written.cache = [mx.ones((1, 3)), None]
    state.take(empty, 0, 0)
    state.take(written, 0, 1)
    state.take(empty, 0, 2)
    assert state.cache[0].tolist() == [[0] * 3, [1] * 3, [0] * 3]
    assert state.cache[1] is None
    state.keep([2, 1])
    assert state.cache[0].tolist() == [[0] * 3, [1] * 3]
