"""What may be asked for: one pydantic model per job kind, and the union a job row stores.

Knows nothing about files, databases or engines.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter

from pipeline.specs.base import Endpoint, JobKind, ModelRef, Overflow
from pipeline.specs.embed import EmbedSpec
from pipeline.specs.generate import GenerateSpec
from pipeline.specs.index import IndexSpec
from pipeline.specs.rerank import RerankSpec

__all__ = [
    "EmbedSpec",
    "Endpoint",
    "GenerateSpec",
    "IndexSpec",
    "JobKind",
    "JobSpec",
    "ModelRef",
    "Overflow",
    "RerankSpec",
    "parse_spec",
]

JobSpec = Annotated[GenerateSpec | EmbedSpec | RerankSpec | IndexSpec, Field(discriminator="kind")]

_ADAPTER: TypeAdapter[JobSpec] = TypeAdapter(JobSpec)


def parse_spec(data: object) -> JobSpec:
    """Turn the JSON of a job row back into its spec; raises ``pydantic.ValidationError``."""
    return _ADAPTER.validate_python(data)
