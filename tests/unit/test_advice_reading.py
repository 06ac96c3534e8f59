"""Facts that advice rests on: samples of requests, what texts share, weights from headers, tokenizers side by side."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.advice.checkpoint import read_draft, read_model, tokenizer_difference
from pipeline.advice.facts import SharedPrefixes, Spread
from pipeline.advice.sample import read_sample
from pipeline.advice.sharing import lookup_forwards, repeated_share, shared_prefixes, spread
from pipeline.advice.workload import replay_answers, workload_facts
from pipeline.checkpoints import TokenCounter
from pipeline.checkpoints.weights import read_weights
from pipeline.errors import InputInvalid, ModelUnsupported, SpecError
from pipeline.specs import GenerateSpec

SPEC = GenerateSpec.model_validate({"model": {"name": "m"}, "sampling": {"max_tokens": 9}})
LIMIT = 1 << 16


# --- what texts share --------------------------------------------------------------------------------------------------


def count_by_tree(prompts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """(tokens saved, tokens kept) by counting every beginning; the slow way."""
    counts: dict[tuple[int, ...], int] = {}
    for prompt in prompts:
        for end in range(1, len(prompt)):
            counts[tuple(prompt[:end])] = counts.get(tuple(prompt[:end]), 0) + 1
    return sum(count - 1 for count in counts.values()), sum(count > 1 for count in counts.values())


def test_shared_prefixes_are_those_of_a_tree_of_all_beginnings() -> None:
    draw = random.Random(3)
    for _ in range(50):
        head = [draw.randrange(3) for _ in range(30)]
        prompts = [head[: draw.choice([20, 25, 30])] + [draw.randrange(3, 9) for _ in range(9)] for _ in range(12)]
        found = shared_prefixes(prompts)
        assert (found.saved, found.kept) == count_by_tree(prompts)
        assert found.total == sum(map(len, prompts))


def test_short_beginnings_and_last_tokens_are_not_shared() -> None:
    assert shared_prefixes([[1, 2, 3], [1, 2, 4]]) == SharedPrefixes(6, 0, 0, 2)
    same = list(range(20))
    assert shared_prefixes([same, same, same]) == SharedPrefixes(60, 38, 19, 19)
    assert shared_prefixes([same]) == SharedPrefixes(20, 0, 0, 0)


def test_repeats_and_spreads() -> None:
    assert repeated_share([1, 2, 3, 4, 5]) == 0
    assert repeated_share([1, 2, 3] * 3) == pytest.approx(4 / 7)
    assert repeated_share([1]) == 0
    assert spread([5]) == Spread(5, 5, 5, 5)
    assert spread(range(101)) == Spread(0, 50, 95, 100)


@pytest.mark.parametrize(
    ("prompt", "answer", "forwards"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8], 3),  # two tokens to find the place, then one check
        ([1, 2, 3], [9, 8, 7], 3),
        ([], [1, 2, 1, 2, 1, 2, 1, 2], 6),  # the answer is its own source
        ([1, 2, 9, 1, 2, 5], [1, 2, 5, 6], 3),  # the newest place decides
    ],
)
def test_lookup_forwards(prompt: list[int], answer: list[int], forwards: int) -> None:
    assert lookup_forwards(prompt, answer, ngram_min=2, ngram_max=3, max_draft=7) == forwards


# --- requests ----------------------------------------------------------------------------------------------------------


def write(folder: Path, *rows: object) -> Path:
    file = folder / "requests.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def test_sample_is_bounded_and_the_same_each_time(tmp_path: Path) -> None:
    file = write(tmp_path, *({"prompt": f"number {number}"} for number in range(500)))
    found = read_sample(file, SPEC, max_line_bytes=LIMIT, items=50)
    assert (found.items, found.is_estimate, len(found.requests), found.invalid) == (500, False, 50, 0)
    assert found == read_sample(file, SPEC, max_line_bytes=LIMIT, items=50)
    numbers = [int(one.body["messages"][0]["content"].split()[1]) for one in found.requests]
    assert max(numbers) > 400
    assert numbers == sorted(numbers)


def test_what_lies_behind_the_bytes_looked_at_is_estimated(tmp_path: Path) -> None:
    file = write(tmp_path, *({"prompt": "x" * 1000} for _ in range(2000)))
    found = read_sample(file, SPEC, max_line_bytes=LIMIT, most_bytes=500_000)
    assert found.is_estimate
    assert found.items == pytest.approx(2000, rel=0.05)


def test_invalid_lines_are_counted_and_nothing_but_them_is_refused(tmp_path: Path) -> None:
    found = read_sample(write(tmp_path, {"prompt": "a"}, "{", {"promt": "b"}), SPEC, max_line_bytes=LIMIT)
    assert (found.items, len(found.requests), found.invalid) == (3, 1, 2)
    assert found.problem is not None and ":2: invalid_json" in found.problem
    with pytest.raises(InputInvalid, match="unknown_parameter"):
        read_sample(write(tmp_path, {"promt": "b"}), SPEC, max_line_bytes=LIMIT)
    with pytest.raises(InputInvalid, match="no requests"):
        read_sample(write(tmp_path), SPEC, max_line_bytes=LIMIT)
    with pytest.raises(SpecError, match="cannot be read"):
        read_sample(tmp_path / "absent", SPEC, max_line_bytes=LIMIT)
    batch = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    with pytest.raises(InputInvalid, match="the line asks for /v1/completions"):
        read_sample(write(tmp_path, batch), SPEC, max_line_bytes=LIMIT)


def test_workload_is_read_off_the_bodies(tmp_path: Path, tiny_llama_path: Path) -> None:
    head = "you are a careful editor of texts about foxes and dogs"
    rows = [
        {"messages": [{"role": "system", "content": head}, {"role": "user", "content": f"Rewrite: fox {number}"}]}
        for number in range(4)
    ]
    rows[0] |= {"temperature": 0.7, "max_tokens": 300, "n": 3, "logprobs": True}
    rows[1] |= {"temperature": 0.7, "top_k": 1, "response_format": {"type": "json_object"}, "presence_penalty": 0.5}
    rows[2] |= {"response_format": {"type": "text"}, "stop": ["."], "tools": []}
    sample = read_sample(write(tmp_path, *rows), SPEC, max_line_bytes=LIMIT)
    found = workload_facts(sample, SPEC, TokenCounter(tiny_llama_path), context_length=256)
    assert found.features == {"logprobs": 1, "n": 1, "penalties": 1, "response_format": 1, "stop": 1}
    assert (found.greedy, found.copy_words, found.choices, found.over_context) == (0.75, 1.0, 6, 1)
    assert found.answer_tokens == Spread(9, 9, 300, 300)
    assert found.shared is not None and found.shared.share > 0.5
    assert found.prompt_tokens is not None and found.row_tokens is not None
    assert found.row_tokens.most == found.prompt_tokens.most + 300
    blind = workload_facts(sample, SPEC, None)
    assert (blind.prompt_tokens, blind.shared, blind.greedy) == (None, None, 0.75)


def test_replay_takes_answers_as_they_are(tiny_llama_path: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog " * 3
    counter = TokenCounter(tiny_llama_path)
    body = {"messages": [{"role": "user", "content": text}]}
    copied = replay_answers("job_1", [(body, text), (body, "")], SPEC, counter)
    assert copied is not None and copied.items == 1
    assert copied.tokens_per_forward > 4
    assert replay_answers("job_1", [(body, "")], SPEC, counter) is None


# --- checkpoints -------------------------------------------------------------------------------------------------------


def test_weights_are_counted_as_stored_and_as_computed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    tensors = {
        "a.weight": np.zeros((8, 8), np.float16),
        "b.weight": np.zeros((8, 8), np.uint32),  # 4 bits each: 512 numbers
        "b.scales": np.zeros((8, 1), np.float16),
        "b.biases": np.zeros((8, 1), np.float16),
        "c.weight": np.zeros((8, 16), np.uint32),  # 8 bits each: 512 numbers
        "c.scales": np.zeros((8, 1), np.float16),
    }
    save_file(tensors, str(tmp_path / "model.safetensors"))
    found = read_weights(tmp_path, {"quantization": {"bits": 4, "group_size": 64, "c": {"bits": 8}}})
    packed = 256 + 16 + 16 + 512 + 16
    assert (found.stored_bytes, found.floats, found.packed, found.packed_bytes) == (128 + packed, 64, 1024, packed)
    assert found.computed_bytes("cpu", "auto", stored_dtype="float16") == 4 * (64 + 1024)
    assert found.computed_bytes("metal", "auto", stored_dtype="float16") == 2 * 64 + packed
    assert found.computed_bytes("metal", "float32", stored_dtype="float16") == 4 * 64 + packed


def test_tokenizers_are_compared_by_what_they_do(tiny_llama_path: Path, tiny_judge_path: Path, tmp_path: Path) -> None:
    same = shutil.copytree(tiny_llama_path, tmp_path / "same")
    assert tokenizer_difference(tiny_llama_path, same) is None
    difference = tokenizer_difference(tiny_llama_path, tiny_judge_path)
    assert difference is not None and "tokens are in one alone or have another id" in difference
    data = json.loads((same / "tokenizer.json").read_text())
    (same / "tokenizer.json").write_text(json.dumps(data | {"normalizer": {"type": "NFC"}}))
    assert tokenizer_difference(tiny_llama_path, same) == "the normalizer differs"
    (same / "tokenizer.json").unlink()
    assert tokenizer_difference(tiny_llama_path, same) == "the drafter has no tokenizer.json to compare"


def test_drafter_of_another_kind_is_known_by_its_config(tiny_llama_path: Path, tmp_path: Path) -> None:
    assert read_draft(tiny_llama_path, "small", tiny_llama_path).difference is None
    folder = shutil.copytree(tiny_llama_path, tmp_path / "dflash")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dflash_config": {"block_size": 16}}))
    assert read_draft(folder, "d", tiny_llama_path).model.draft_kind == "dflash"
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "qwen3_5_mtp"}))
    assert read_draft(folder, "d", tiny_llama_path).model.draft_kind == "mtp"
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    with pytest.raises(ModelUnsupported, match="advice is for generators"):
        read_model(folder, "d")
