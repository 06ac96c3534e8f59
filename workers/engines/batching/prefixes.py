"""Prompt prefixes that rows share, each computed once: a radix tree of token runs with their keys and values.

A node holds the run behind its parent's, so nested prefixes (a system prompt, a few-shot block in it, a document) share
their beginnings too. Knows nothing about models; what is stored is opaque but for its size.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from workers.engines.batching.lane_caches import Segment, cut_segments

#: A shorter run is cheaper to read again than to keep.
LEAST_TOKENS = 16

#: A plan looks at no more boundaries than this.
MOST_NODES = 4096


@dataclass(eq=False, slots=True)
class PrefixNode:
    """A run of tokens; ``segments`` are its keys and values by layer, None until they are computed.

    ``children`` are known by their first tokens, as many as the store's grain.
    """

    start: int
    tokens: tuple[int, ...]
    parent: PrefixNode | None = None
    children: dict[tuple[int, ...], PrefixNode] = field(default_factory=dict)
    segments: list[Segment] | None = None
    nbytes: int = 0
    used_at: int = 0
    is_planned: bool = False

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def is_wanted(self) -> bool:
        return self.is_planned or self.segments is not None


class PrefixStore:
    """What was computed of shared prefixes, the least recently used leaf going first when it is more than the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = self._most_bytes = limit_bytes
        self.nbytes = 0
        self._grain = 1
        self._root = PrefixNode(0, ())
        self._clock = itertools.count(1)

    def plan(self, prompts: Sequence[Sequence[int]], grain: int = 1) -> None:
        """Mark what at least two of these prompts begin with, in whole ``grain`` tokens.

        The last token of a prompt is never in a prefix: it has to be read to say what comes next.
        """
        if grain != self._grain:  # runs that were cut elsewhere are of no use
            self.clear()
            self._grain = grain
        for node in self._walk():
            node.is_planned = False
        ordered = sorted(tuple(prompt[:-1]) for prompt in prompts)
        for tokens, end in itertools.islice(_shared_runs(ordered, grain), MOST_NODES):
            self._boundary(tokens[:end]).is_planned = True
        self._prune()

    def path(self, prompt: Sequence[int]) -> list[PrefixNode]:
        """Nodes that are wholly in the prompt, short of its last token, outermost first; the last is planned or computed.

        One before it may be neither: a run that is too short to be shared for its own sake.
        """
        path: list[PrefixNode] = []
        node, wanted = self._root, 0
        while node.end < len(prompt) - 1:
            child = node.children.get(tuple(prompt[node.end : node.end + self._grain]))
            if child is None or child.end >= len(prompt) or tuple(prompt[child.start : child.end]) != child.tokens:
                break
            path.append(child)
            node = child
            wanted = len(path) if child.is_wanted else wanted
        for node in path[:wanted]:
            node.used_at = next(self._clock)
        return path[:wanted]

    def allows(self, node: PrefixNode, nbytes: int) -> bool:
        """Whether a node of this size could be kept beside those that it continues; it is planned no more if not."""
        fits = self._is_here(node) and nbytes + sum(above.nbytes for above in _above(node)) <= self.limit_bytes
        if not fits:
            self.give_up(node)
        return fits

    def keep(self, node: PrefixNode, segments: list[Segment]) -> bool:
        """Store a node's keys and values if they fit, once what is used less has gone; false where they do not."""
        size = sum(keys.nbytes + values.nbytes for keys, values in segments)
        if not self.allows(node, size):
            return False
        self._make_room(size, _above(node))
        node.segments, node.nbytes = segments, size
        self.nbytes += size
        return True

    def give_up(self, node: PrefixNode) -> None:
        """Neither it nor what continues it is planned or kept any more."""
        for each in (node, *_below(node)):
            each.is_planned = False
            if self._is_here(each):
                self._release(each)

    def fit(self, limit_bytes: int | None) -> None:
        """Hold no more than this, nor than it was made for, until told otherwise."""
        self.limit_bytes = min(self._most_bytes, self._most_bytes if limit_bytes is None else limit_bytes)
        self._make_room(0, [])

    def clear(self) -> None:
        """Forget everything."""
        for node in self._walk():  # nodes know each other in circles, which would keep their arrays for a while
            self._release(node)
        self._root = PrefixNode(0, ())

    # --- the tree ----------------------------------------------------------------------------------------------------

    def _boundary(self, tokens: tuple[int, ...]) -> PrefixNode:
        """The node that ends where ``tokens`` do; runs that pass over that place are cut there."""
        node = self._root
        while node.end < len(tokens):
            rest = tokens[node.end :]
            child = node.children.get(self._key(rest))
            if child is None:
                child = PrefixNode(node.end, rest, node)
                node.children[self._key(rest)] = child
                return child
            common = _common(child.tokens, rest) // self._grain * self._grain
            node = child if common == len(child.tokens) else self._cut(child, common)
        return node

    def _key(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tokens[: self._grain]

    def _cut(self, node: PrefixNode, length: int) -> PrefixNode:
        """Cut a run in two; returns the front."""
        assert node.parent is not None
        front = PrefixNode(node.start, node.tokens[:length], node.parent, used_at=node.used_at)
        node.parent.children[self._key(front.tokens)] = front
        node.parent, node.start, node.tokens = front, node.start + length, node.tokens[length:]
        front.children[self._key(node.tokens)] = node
        if node.segments is not None:
            front.segments, node.segments = cut_segments(node.segments, length)
            front.nbytes = node.nbytes * length // (length + len(node.tokens))
            node.nbytes -= front.nbytes
        return front

    def _make_room(self, size: int, pinned: Collection[PrefixNode]) -> None:
        while self.nbytes + size > self.limit_bytes:
            leaves = [node for node in self._leaves() if node not in pinned]
            if not leaves:
                return
            self._release(min(leaves, key=lambda node: node.used_at))

    def _leaves(self) -> Iterator[PrefixNode]:
        """What is kept and has nothing below it that is."""
        holding: set[PrefixNode] = set()
        for node in reversed(list(self._walk())):
            if node.segments is not None and node not in holding:
                yield node
            if node.parent is not None and (node.segments is not None or node in holding):
                holding.add(node.parent)

    def _release(self, node: PrefixNode) -> None:
        self.nbytes -= node.nbytes
        node.segments, node.nbytes = None, 0

    def _is_here(self, node: PrefixNode) -> bool:
        """It was not forgotten meanwhile."""
        return (_above(node) or [node])[-1].parent is self._root

    def _prune(self) -> None:
        """Nodes go that nobody wants, nor anything below them."""
        for node in reversed(list(self._walk())):  # children before parents
            if not node.is_wanted and not node.children and node.parent is not None:
                del node.parent.children[self._key(node.tokens)]
                node.parent = None

    def _walk(self) -> Iterator[PrefixNode]:
        """Parents before children."""
        return _below(self._root)


def _below(node: PrefixNode) -> Iterator[PrefixNode]:
    stack = list(node.children.values())
    while stack:
        below = stack.pop()
        yield below
        stack.extend(below.children.values())


def _above(node: PrefixNode) -> list[PrefixNode]:
    """Nodes that it continues, innermost first."""
    above = []
    while node.parent is not None and node.parent.tokens:
        node = node.parent
        above.append(node)
    return above


def _shared_runs(ordered: Sequence[tuple[int, ...]], grain: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """(a prompt, how much of it is shared) for each place where a group of sorted prompts parts; outermost first."""
    stack = [(0, len(ordered), 0)]
    while stack:
        low, high, depth = stack.pop()
        if high - low < 2:
            continue
        shared = _common(ordered[low], ordered[high - 1])  # of sorted prompts the first and last differ soonest
        whole = shared // grain * grain
        if whole - depth >= LEAST_TOKENS:
            yield ordered[low], whole
            depth = whole
        for first, last in _parts(ordered, low, high, shared):
            stack.append((first, last, depth))


def _parts(ordered: Sequence[tuple[int, ...]], low: int, high: int, at: int) -> Iterator[tuple[int, int]]:
    """Ranges of prompts that agree in the token at ``at``; those that end before it are in none."""
    first = low
    while first < high:
        if len(ordered[first]) <= at:
            first += 1
            continue
        last = first + 1
        while last < high and ordered[last][at] == ordered[first][at]:
            last += 1
        yield first, last
        first = last


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common; halving, since comparing slices is fast."""
    if one[: len(other)] == other[: len(one)]:
        return min(len(one), len(other))
    low, high = 0, min(len(one), len(other))
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
