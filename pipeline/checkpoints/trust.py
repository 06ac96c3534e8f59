"""Code that a checkpoint brings along: whether it may run here. Only for a model that the settings name.

Two ways lead from a folder to code: ``model_file`` in ``config.json`` (mlx-lm builds the model with it) and ``auto_map``
in ``tokenizer_config.json`` (transformers builds the tokenizer with it, where it has none of its own).
"""

from __future__ import annotations

from pathlib import Path

from pipeline.checkpoints.files import read_json
from pipeline.config import Settings
from pipeline.errors import ModelNotTrusted, ModelUnsupported


def may_run_code(name: str, path: Path, settings: Settings) -> bool:
    """Whether the model's own code may run.

    Raises:
        ModelNotTrusted: it has to, and the settings do not name the model.
        ModelUnsupported: it lies outside the model's folder, where no checksum covers it.
    """
    config = read_json(path / "config.json", default={})
    needed = config.get("model_file") if isinstance(config, dict) else None
    trusted = name in settings.trusted_models
    if needed is None:
        return trusted
    if not isinstance(needed, str) or Path(needed).name != needed:
        raise ModelUnsupported(f"model_file must be a file beside it, not {needed!r}", place=str(path / "config.json"))
    if not trusted:
        raise ModelNotTrusted(
            f"{name} brings its own code ({needed}), and `trusted_models` of this host does not name it",
            hint=f"read that file, then add {name!r} to `trusted_models` in the settings of each worker",
        )
    return True
