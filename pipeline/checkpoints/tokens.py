"""Counting tokens on the parent's side, for budgets: no model, no transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import ModelUnsupported


class TokenCounter:
    """Counts with a checkpoint's own ``tokenizer.json``; padding and truncation baked into that file are taken off."""

    def __init__(self, path: Path) -> None:
        """``path`` is the checkpoint's folder. Raises ModelUnsupported when it has no usable ``tokenizer.json``."""
        from tokenizers import Tokenizer  # 60 ms that `--help` does not need

        file = path / "tokenizer.json"
        if not file.is_file():
            raise ModelUnsupported(
                f"{path} has no tokenizer.json", hint="save the model's fast tokenizer beside its weights"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the Rust side raises plain Exception
            raise ModelUnsupported(f"cannot be read: {error}", place=str(file)) from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, the tokenizer's own special tokens included; texts must be valid Unicode."""
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def encode(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Token ids of each text; ``special`` adds the tokenizer's own special tokens."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        return [list(encoding.ids) for encoding in encodings]
