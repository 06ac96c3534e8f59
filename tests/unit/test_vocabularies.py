"""Whether two models speak the same tokens, and what loading one that guesses says where they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import DraftIncompatible, ModelNotFound
from tests.fixtures.models import TINY_CONTEXT, write_tiny_llama
from workers.engines.drafting import load_drafter
from workers.engines.loading import LanguageModel, load_language_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_language_model(write_tiny_llama(tmp_path_factory.mktemp("target") / "llama"))


def edit(file: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def test_a_sister_is_loaded_and_measured(tmp_path: Path, target: LanguageModel) -> None:
    folder = write_tiny_llama(tmp_path / "sister", seed=1, chat_template=None)
    drafter = load_drafter({"draft_path": str(folder), "draft_dtype": "float32", "draft_digest": "0"}, target)

    assert drafter is not None
    assert (drafter.vocabulary, drafter.end_tokens, drafter.can_rewind) == (300, frozenset({0}), True)
    # Embeddings and the last norm; projections, feed-forward and norms of 2 layers.
    assert drafter.weights_bytes == 4 * (300 * 32 + 32 + 2 * (3 * 32 * 32 + 3 * 64 * 32 + 2 * 32))
    # 2 layers, keys and values, 2 heads of 8 floats
    assert drafter.cost.row_bytes(10) == 10 * 2 * 2 * 2 * 8 * 4
    assert (drafter.cost + drafter.cost).row_bytes(10) == 2 * drafter.cost.row_bytes(10)
    proposer = drafter.proposer(4)
    proposer.begin(0, [5, 6, 7])
    assert len(proposer.propose({0: 3})[0]) in (1, 2, 3)
    assert drafter.loaded.context_length == TINY_CONTEXT


def test_no_path_is_no_drafter(target: LanguageModel) -> None:
    assert load_drafter({"endpoint": "/v1/completions"}, target) is None


def test_a_folder_that_is_not_there_is_the_usual_error(tmp_path: Path, target: LanguageModel) -> None:
    with pytest.raises(ModelNotFound):
        load_drafter({"draft_path": str(tmp_path / "none")}, target)


def swap_tokens(tokenizer: Any) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    one, other = "z", "q"
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]


def swap_merges(tokenizer: Any) -> None:
    tokenizer["model"]["merges"].reverse()


def add_token(tokenizer: Any) -> None:
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 299, "content": "<|new|>"})
    tokenizer["model"]["vocab"] = {
        token: number for token, number in tokenizer["model"]["vocab"].items() if number != 299
    }
    kept = tokenizer["model"]["vocab"]
    tokenizer["model"]["merges"] = [pair for pair in tokenizer["model"]["merges"] if "".join(pair) in kept]


def make_ordinary(tokenizer: Any) -> None:
    tokenizer["added_tokens"][1]["special"] = False


def lower_case(tokenizer: Any) -> None:
    tokenizer["normalizer"] = {"type": "Lowercase"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (swap_tokens, "2 token ids mean something else"),
        (swap_merges, "they encode"),
        (add_token, "'<\\|new\\|>' to the drafter"),
        (make_ordinary, "special tokens"),
        (lower_case, "they encode"),
    ],
)
def test_another_tokenizer_is_refused(
    tmp_path: Path, target: LanguageModel, change: Callable[[Any], None], says: str
) -> None:
    folder = write_tiny_llama(tmp_path / "other")
    edit(folder / "tokenizer.json", change)

    with pytest.raises(DraftIncompatible, match=says) as refused:
        load_drafter({"draft_path": str(folder)}, target)
    assert refused.value.code == "draft_incompatible"
    assert refused.value.hint


def test_another_end_is_refused(tmp_path: Path, target: LanguageModel) -> None:
    folder = write_tiny_llama(tmp_path / "other")
    edit(folder / "config.json", lambda config: config.update(eos_token_id=[0, 1]))

    with pytest.raises(DraftIncompatible, match="tokens that end an answer"):
        load_drafter({"draft_path": str(folder)}, target)


def test_ids_that_only_one_model_says_do_not_count(tmp_path: Path, target: LanguageModel) -> None:
    """Models of one family pad their vocabularies differently."""
    folder = write_tiny_llama(tmp_path / "wider", words=("<extra>",))
    drafter = load_drafter({"draft_path": str(folder)}, target)

    assert drafter is not None
    assert drafter.vocabulary == 300
