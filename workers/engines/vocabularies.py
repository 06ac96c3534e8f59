"""Do two models speak the same tokens? Told by their vocabularies and by what they make of texts, never by a name.

Token ids go from one model to the other as they are, so an id must be the same token in both. Padding counts for
nothing: neither model reads or says it.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from pipeline.errors import DraftIncompatible

_HINT = "take a smaller model of the same family and version, or leave `draft:` out"

#: Texts whose encodings must be equal: scripts, spaces, numbers, code, what normalizers fold, what pre-tokenizers split.
PROBE_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "it's don't WE'LL they've I'm",
    "3.14159 1,000,000 2026-11-29 0x1F 1e-9 007",
    "  two  spaces\tand\ttabs\n\n\nand   lines \r\n end ",
    "",
    " ",
    "\n",
    'def f(x: int) -> str:\n    return {\'a\': [x, *y], "b": f"{x!r}"}  # why\n',
    "for (int i = 0; i < n; ++i) { a[i] <<= 2; } // ok && !done || x != y",
    '{"name": "Ann", "tags": ["a", null, true], "n": -1.5}',
    "<a href='x'>&amp;</a> https://example.org/a_b?c=d&e=%20#f user@example.org",
    "na\u00efve caf\u00e9 \u00e9 e\u0301 \ufb01 \u2126 \u00bd \u00df \u0130",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0 \u4e2d\u6587\uff0c\u6807\u70b9\u3002 \ud55c\uad6d\uc5b4",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0393\u03b5\u03b9\u03ac \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f600\U0001f469\u200d\U0001f4bb\U0001f1eb\U0001f1f7 \u2764\ufe0f",
    "a\u00a0b\u200bc\u2028d\ufeffe\x00f\x1b",
    "antidisestablishmentarianism Donaudampfschifffahrtsgesellschaft xyzzyqqq",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ---------------- ................",
    "\u2014 \u201cquoted\u201d \u2018single\u2019 \u2026 \u20ac\u00a3\u00a5 \u2200x\u2208\u211d: x\u00b2\u22650 \u2192",
    "| a | b |\n|---|---|\n- [ ] *one* **two** `three`\n\n```py\nx\n```",
)


def vocabulary_size(model: Any) -> int:
    """Ids that a model gives logits for: it can say no others. The shape is known before anything is computed."""
    return int(model(mx.array([[0]])).shape[-1])


def check_same_vocabulary(target: Any, drafter: Any, tokens: int | None = None) -> None:
    """Compare the tokenizers (of mlx-lm) of a model and of one that guesses for it.

    Args:
        tokens: ids from here on are said by only one of the models, or by none; None compares all.

    Raises:
        DraftIncompatible: they differ; says in what.
    """
    _compare_tokens(target, drafter, tokens)
    _compare_ends(target, drafter)
    specials = [content for _, content in sorted(_specials(target).items())]
    for text in (*PROBE_TEXTS, *(f"one {special}two" for special in specials[:8])):
        ours, theirs = list(target.encode(text)), list(drafter.encode(text))
        if ours != theirs:
            at = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), "the end")
            raise _differ(f"they encode {text!r} differently, from place {at} on")


def _compare_tokens(target: Any, drafter: Any, tokens: int | None) -> None:
    ours, theirs = _by_id(target, tokens), _by_id(drafter, tokens)
    differing = sorted(number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number))
    if differing:
        first = differing[0]
        raise _differ(
            f"{len(differing)} token ids mean something else: {first} is {ours.get(first)!r} to the model "
            f"and {theirs.get(first)!r} to the drafter"
        )


def _compare_ends(target: Any, drafter: Any) -> None:
    for name, ours, theirs in (
        ("tokens that end an answer", set(target.eos_token_ids), set(drafter.eos_token_ids)),
        ("the token that begins a text", target.bos_token_id, drafter.bos_token_id),
        ("special tokens", _specials(target), _specials(drafter)),
    ):
        if ours != theirs:
            raise _differ(f"{name}: {ours!r} of the model, {theirs!r} of the drafter")


def _by_id(tokenizer: Any, tokens: int | None) -> dict[int, str]:
    return {number: token for token, number in tokenizer.get_vocab().items() if tokens is None or number < tokens}


def _specials(tokenizer: Any) -> dict[int, str]:
    added = tokenizer.added_tokens_decoder
    return {number: str(token.content) for number, token in added.items() if token.special}


def _differ(what: str) -> DraftIncompatible:
    return DraftIncompatible(f"the drafter's vocabulary is another than the model's: {what}", hint=_HINT)
