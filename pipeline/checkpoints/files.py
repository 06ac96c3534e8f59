"""Which files of a folder make the model, and how to read the small ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.errors import ModelNotFound, ModelUnsupported

#: Files at the top of a checkpoint that change what it computes. Others (README, training logs) do not count.
_NAMES = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "config.json",
        "config_sentence_transformers.json",
        "generation_config.json",
        "hf_quant_config.json",
        "merges.txt",
        "model.safetensors.index.json",
        "modules.json",
        "sentence_bert_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    }
)


def model_files(path: Path) -> list[Path]:
    """The files that make the model, sorted by their path below ``path``.

    Raises:
        ModelNotFound: there is no ``config.json``.
        ModelUnsupported: there are no weights as safetensors.
    """
    if not (path / "config.json").is_file():
        hint = "convert it first: pipeline models convert FILE" if any(path.glob("*.gguf")) else None
        raise ModelNotFound(f"{path} holds no config.json, so it is no checkpoint", hint=hint)
    files = [file for file in path.iterdir() if file.name in _NAMES or file.suffix == ".safetensors"]
    files += (path / "additional_chat_templates").glob("*.jinja")
    if _names_code(path):
        files += path.glob("*.py")
    for folder in module_folders(path):
        files += (file for file in folder.iterdir() if file.name == "config.json" or file.suffix == ".safetensors")
    files = sorted((file for file in files if file.is_file()), key=lambda file: file.relative_to(path).as_posix())
    if not any(file.suffix == ".safetensors" and file.parent == path for file in files):
        pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in path.glob(pattern))
        found = f"only {pickled[0]}, which can run code when it is read" if pickled else "none"
        raise ModelUnsupported(f"{path} must hold its weights as safetensors; it holds {found}")
    return files


def _names_code(path: Path) -> bool:
    """Whether code beside the weights may take part in what the model computes."""
    config, tokenizer = (read_json(path / name, default={}) for name in ("config.json", "tokenizer_config.json"))
    return any(isinstance(one, dict) and (one.get("model_file") or one.get("auto_map")) for one in (config, tokenizer))


def module_folders(path: Path) -> list[Path]:
    """Subfolders that ``modules.json`` names (pooling, dense layers, ...); a path outside the checkpoint is refused."""
    modules = read_json(path / "modules.json", default=[])
    names = (
        [module.get("path", "") for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []
    )
    folders = []
    for name in filter(None, names):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ModelUnsupported(f"modules.json names a folder outside the checkpoint: {name!r}", place=str(path))
        if (path / name).is_dir():
            folders.append(path / name)
    return folders


def read_json(file: Path, *, default: Any = None) -> Any:
    """Parse a file; ``default`` where it is missing. Raises ModelUnsupported for one that is not JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
    except (ValueError, OSError) as error:
        raise ModelUnsupported(f"cannot be read: {error}", place=str(file)) from None
