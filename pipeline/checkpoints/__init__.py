"""Checkpoints: where a model's files are, which files they are, and what they say of the model.

Parent side: reads JSON, safetensors headers and tokenizers. Never imports mlx, transformers or torch.
"""

from __future__ import annotations

from pipeline.checkpoints.describe import Checkpoint, describe
from pipeline.checkpoints.digest import digest
from pipeline.checkpoints.resolve import resolve
from pipeline.checkpoints.tokens import TokenCounter

__all__ = ["Checkpoint", "TokenCounter", "describe", "digest", "resolve"]
