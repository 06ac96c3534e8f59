"""Finding, pinning and describing checkpoints without loading them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from pipeline.checkpoints import TokenCounter, describe, digest, resolve
from pipeline.config import Settings
from pipeline.errors import ModelNotFound, ModelUnsupported
from tests.fixtures.models import TINY_CONTEXT, write_tiny_llama

ROOT = Path(__file__).parents[2]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def checkpoint(tiny_llama_path: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(tiny_llama_path, tmp_path / "checkpoint")


def change(file: Path, **values: Any) -> None:
    old = json.loads(file.read_text()) if file.exists() else {}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(old | values))


# --- resolve ----------------------------------------------------------------------------------------------------------


def test_resolve_takes_the_settings_first_then_a_folder_then_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tmp_path / name for name in ("alias", "work", "home")}
    for folder in folders.values():
        (folder / "models" / "m").mkdir(parents=True)
    (folders["work"] / "m").mkdir()
    monkeypatch.chdir(folders["work"])
    aliased = Settings(home=folders["home"], models={"m": str(folders["alias"])})
    assert resolve("m", aliased) == folders["alias"]
    plain = Settings(home=folders["home"])
    assert resolve("m", plain) == folders["work"] / "m"
    (folders["work"] / "m").rmdir()
    assert resolve("m", plain) == folders["home"] / "models" / "m"


def test_resolve_of_an_alias_without_its_folder_does_not_look_elsewhere(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, models={"m": str(tmp_path / "gone")})
    (tmp_path / "models" / "m").mkdir(parents=True)
    with pytest.raises(ModelNotFound, match="gone"):
        resolve("m", settings)


def test_resolve_names_what_it_tried(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound, match="no model 'nobody/nothing'") as caught:
        resolve("nobody/nothing", settings, download=False)
    assert caught.value.hint is not None
    for place in ("`models` in the settings", str(settings.models_path), "local hub cache"):
        assert place in caught.value.hint


def test_resolve_stays_inside_the_models_folder(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / "outside").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ModelNotFound):
        resolve("../outside", settings, download=False)


# --- digest -----------------------------------------------------------------------------------------------------------


def test_digest_is_of_the_content_and_not_of_the_place(tiny_llama_path: Path, checkpoint: Path) -> None:
    assert digest(checkpoint) == digest(tiny_llama_path)
    (checkpoint / "README.md").write_text("notes change nothing")
    assert digest(checkpoint) == digest(tiny_llama_path)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "chat_template.jinja"]
)
def test_digest_changes_with_each_file_that_matters(checkpoint: Path, name: str) -> None:
    before = digest(checkpoint)
    with (checkpoint / name).open("ab") as file:
        file.write(b" ")
    assert digest(checkpoint) != before


def test_digest_covers_the_folders_of_modules(checkpoint: Path) -> None:
    (checkpoint / "modules.json").write_text(json.dumps([{"path": "1_Pooling", "type": "x.Pooling"}]))
    change(checkpoint / "1_Pooling" / "config.json", pooling_mode_cls_token=True)
    before = digest(checkpoint)
    change(checkpoint / "1_Pooling" / "config.json", pooling_mode_cls_token=False)
    assert digest(checkpoint) != before


def test_digest_hashes_a_file_once_and_again_when_it_changes(
    checkpoint: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    module = sys.modules["pipeline.checkpoints.digest"]
    plain = module._hash_file
    monkeypatch.setattr(module, "_hash_file", lambda file: (hashed.append(file.name), plain(file))[1])
    first = digest(checkpoint, settings)
    assert "model.safetensors" in hashed
    hashed.clear()
    assert digest(checkpoint, settings) == first
    assert hashed == []
    change(checkpoint / "config.json", note="new")
    assert digest(checkpoint, settings) == digest(checkpoint) != first
    assert hashed[0] == "config.json"


def test_digest_survives_a_torn_cache(checkpoint: Path, settings: Settings) -> None:
    first = digest(checkpoint, settings)
    (cache,) = settings.home_path.glob("*.json")
    cache.write_text('{"half')
    assert digest(checkpoint, settings) == first


def test_pickled_weights_are_refused(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(ModelUnsupported, match="pytorch_model"):
        digest(checkpoint)


def test_folder_that_is_no_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        describe(tmp_path)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelNotFound) as caught:
        describe(tmp_path)
    assert caught.value.hint is not None
    assert "pipeline models convert" in caught.value.hint


def test_module_folder_outside_the_checkpoint_is_refused(checkpoint: Path) -> None:
    (checkpoint / "modules.json").write_text(json.dumps([{"path": "../other", "type": "x.Pooling"}]))
    with pytest.raises(ModelUnsupported, match="outside"):
        digest(checkpoint)


# --- describe ---------------------------------------------------------------------------------------------------------


def test_describe_reads_the_small_files_of_a_generator(tiny_llama_path: Path) -> None:
    found = describe(tiny_llama_path)
    assert (found.model_type, found.kind, found.dtype, found.quantization) == ("llama", "generator", "float32", None)
    assert found.context_length == TINY_CONTEXT
    assert found.has_chat_template
    assert found.pooling is None
    assert found.vocabulary == 300
    assert found.parameter_bytes == (300 * 32 + 2 * (32 * 32 * 2 + 16 * 32 * 2 + 64 * 32 * 3 + 64) + 32) * 4


def test_describe_of_an_encoder(minilm_path: Path) -> None:
    found = describe(minilm_path)
    assert (found.kind, found.pooling, found.context_length, found.dtype) == ("embedder", "mean", 512, "float32")
    assert not found.has_chat_template


@pytest.mark.parametrize(
    ("config", "modules", "kind"),
    [
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, [], "generator"),
        (
            {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
            ["sentence_transformers.models.Pooling"],
            "embedder",
        ),
        ({"architectures": ["BertForSequenceClassification"], "model_type": "bert"}, [], "reranker"),
        ({"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"}, [], "embedder"),
        (
            {"architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "use_bidirectional_attention": True},
            [],
            "embedder",
        ),
        ({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}, [], "generator"),
        (
            {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl"},
            ["x.LogitScore"],
            "reranker",
        ),
    ],
)
def test_describe_guesses_the_kind(checkpoint: Path, config: dict[str, Any], modules: list[str], kind: str) -> None:
    change(checkpoint / "config.json", **config)
    (checkpoint / "modules.json").write_text(json.dumps([{"path": "", "type": name} for name in modules]))
    assert describe(checkpoint).kind == kind


def test_describe_tells_quantization_and_the_type_of_most_weights(checkpoint: Path) -> None:
    change(checkpoint / "config.json", quantization={"group_size": 64, "bits": 4})
    tensors = {"a": np.zeros((4, 4), np.uint32), "b": np.zeros(8, np.float16), "c": np.zeros(2, np.float32)}
    save_file(tensors, str(checkpoint / "model.safetensors"))
    found = describe(checkpoint)
    assert (found.quantization, found.dtype, found.parameter_bytes) == ("4-bit, group 64", "float16", 64 + 16 + 8)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]", b"\x04\0\0\0\0\0\0\0nope"])
def test_describe_refuses_what_is_no_safetensors_file(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelUnsupported, match="not a safetensors file"):
        describe(checkpoint)


def test_describe_refuses_a_config_that_is_no_json(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(ModelUnsupported, match="cannot be read"):
        describe(checkpoint)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_counter_counts_as_the_tokenizer_and_ignores_baked_in_limits(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = ["", "hello", "hello world " * 40, "🦊"]
    expected = [len(tokenizer.encode(text).ids) for text in texts]
    assert expected[2] > 20
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert TokenCounter(folder).count(texts) == expected


def test_counter_without_a_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match=r"no tokenizer\.json"):
        TokenCounter(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelUnsupported, match="cannot be read"):
        TokenCounter(tmp_path)


def test_room_loads_no_heavy_library(tiny_llama_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from pipeline.checkpoints import describe, digest, TokenCounter\n"
        f"path = Path({str(tiny_llama_path)!r}); describe(path); digest(path); TokenCounter(path).count(['a'])\n"
        "print([name for name in ('mlx', 'transformers', 'torch', 'huggingface_hub', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
