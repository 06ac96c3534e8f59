"""Prompt prefixes that rows share, each computed once: a radix tree of token runs with their keys and values.

A node holds the run behind its parent's, so nested prefixes (a system prompt, a few-shot block in it, a document) share
their beginnings too. Knows nothing about models; what is stored is opaque but for its size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from workers.engines.batching.lanes import Segment, cut_segments

#: A shorter run is cheaper to read again than to keep.
LEAST_TOKENS = 16

#: A plan looks at no more boundaries than this.
MOST_NODES = 4096


@dataclass(eq=False, slots=True)
class PrefixNode:
    """A run of tokens; ``segments`` are its keys and values by layer, None until they are computed."""

    start: int
    tokens: tuple[int, ...]
    parent: PrefixNode | None = None
    children: dict[int, PrefixNode] = field(default_factory=dict)
    segments: list[Segment] | None = None
    nbytes: int = 0
    used_at: int = 0
    is_planned: bool = False

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class PrefixStore:
    """What was computed of shared prefixes, the least recently used leaf going first when it is more than the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self._root = PrefixNode(0, ())
        self._clock = itertools.count(1)

    def plan(self, prompts: Sequence[Sequence[int]], grain: int = 1) -> None:
        """Mark what at least two of these prompts begin with, in whole ``grain`` tokens.

        The last token of a prompt is never in a prefix: it has to be read to say what comes next.
        """
        self._forget_plans()
        ordered = sorted(tuple(prompt[:-1]) for prompt in prompts)
        for tokens, end in itertools.islice(_shared_runs(ordered), MOST_NODES):
            if whole := end // grain * grain:
                self._boundary(tokens[:whole]).is_planned = True

    def path(self, prompt: Sequence[int]) -> list[PrefixNode]:
        """Nodes that are wholly in the prompt, short of its last token, outermost first; all planned or computed."""
        path: list[PrefixNode] = []
        node = self._root
        while True:
            at = node.end
            child = node.children.get(prompt[at]) if at < len(prompt) - 1 else None
            if child is None or child.end >= len(prompt) or tuple(prompt[at : child.end]) != child.tokens:
                return path
            if child.segments is None and not child.is_planned:
                return path
            child.used_at = next(self._clock)
            path.append(child)
            node = child

    def keep(self, node: PrefixNode, segments: list[Segment]) -> bool:
        """Store a node's keys and values if they fit, once what is used less has gone; false where they do not."""
        size = sum(keys.nbytes + values.nbytes for keys, values in segments)
        self._make_room(size)
        if self.nbytes + size > self.limit_bytes:
            return False
        node.segments, node.nbytes = segments, size
        self.nbytes += size
        return True

    def shrink(self, limit_bytes: int) -> None:
        """Hold no more than this from now on."""
        self.limit_bytes = limit_bytes
        self._make_room(0)

    def clear(self) -> None:
        """Forget everything."""
        self._root, self.nbytes = PrefixNode(0, ()), 0

    # --- the tree ----------------------------------------------------------------------------------------------------

    def _boundary(self, tokens: tuple[int, ...]) -> PrefixNode:
        """The node that ends where ``tokens`` do; runs that pass over that place are cut there."""
        node = self._root
        while node.end < len(tokens):
            rest = tokens[node.end :]
            child = node.children.get(rest[0])
            if child is None:
                child = PrefixNode(node.end, rest, node)
                node.children[rest[0]] = child
                return child
            common = _common(child.tokens, rest)
            node = child if common == len(child.tokens) else self._cut(child, common)
        return node

    def _cut(self, node: PrefixNode, length: int) -> PrefixNode:
        """Cut a run in two; returns the front."""
        assert node.parent is not None
        front = PrefixNode(node.start, node.tokens[:length], node.parent, used_at=node.used_at)
        node.parent.children[front.tokens[0]] = front
        front.children[node.tokens[length]] = node
        node.parent, node.start, node.tokens = front, node.start + length, node.tokens[length:]
        if node.segments is not None:
            front.segments, node.segments = cut_segments(node.segments, length)
            front.nbytes = node.nbytes * length // (length + len(node.tokens))
            node.nbytes -= front.nbytes
        return front

    def _make_room(self, size: int) -> None:
        while self.nbytes + size > self.limit_bytes:
            leaves = [node for node in self._walk() if node.segments is not None and not _holds_below(node)]
            if not leaves:
                return
            oldest = min(leaves, key=lambda node: node.used_at)
            self.nbytes -= oldest.nbytes
            oldest.segments, oldest.nbytes = None, 0

    def _forget_plans(self) -> None:
        """Before a new plan: nodes without keys and values go, unless something below them has some."""
        for node in list(self._walk()):
            node.is_planned = False
        for node in reversed(list(self._walk())):  # children before parents
            if node.segments is None and not node.children and node.parent is not None:
                del node.parent.children[node.tokens[0]]

    def _walk(self) -> Iterator[PrefixNode]:
        """Parents before children."""
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def _holds_below(node: PrefixNode) -> bool:
    stack = list(node.children.values())
    while stack:
        below = stack.pop()
        if below.segments is not None:
            return True
        stack.extend(below.children.values())
    return False


def _shared_runs(ordered: Sequence[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], int]]:
    """(a prompt, how much of it is shared) for each place where a group of sorted prompts parts; outermost first."""
    stack = [(0, len(ordered), 0)]
    while stack:
        low, high, depth = stack.pop()
        if high - low < 2:
            continue
        shared = _common(ordered[low], ordered[high - 1])  # of sorted prompts the first and last differ soonest
        if shared - depth >= LEAST_TOKENS:
            yield ordered[low], shared
            depth = shared
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
