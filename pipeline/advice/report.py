"""All advice about one job as one value: what a table and a JSON document are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pipeline.advice.facts import DraftFacts, HostFacts, ModelFacts, WorkloadFacts
from pipeline.advice.lines import Mechanism, Room
from pipeline.advice.mechanisms import advise, find_room
from pipeline.advice.remarks import remarks, unknowns
from pipeline.checkpoints.footprint import Footprint
from pipeline.ports import JsonObject
from pipeline.specs import GenerateSpec


@dataclass(frozen=True, slots=True)
class Report:
    """``dtype`` is what the engine computes in."""

    spec: GenerateSpec
    model: ModelFacts
    dtype: str
    footprint: Footprint
    work: WorkloadFacts | None
    host: HostFacts
    room: Room
    mechanisms: tuple[Mechanism, ...]
    remarks: tuple[str, ...]
    unknown: tuple[str, ...]

    def as_document(self) -> JsonObject:
        """Sizes are bytes. ``mechanisms`` is the table; what is null is not known."""
        model, footprint, work = self.model, self.footprint, self.work
        return {
            "model": {
                "name": model.name,
                "family": footprint.family,
                "dtype": model.dtype,
                "computed_in": self.dtype,
                "quantization": model.quantization,
                "context_length": model.context_length,
                "has_chat_template": model.has_chat_template,
                "stored_bytes": model.weights.stored_bytes,
                "weights_bytes": footprint.weights_bytes,
                "token_bytes": footprint.token_bytes if footprint.caches else None,
                "window_bytes": footprint.window_bytes if footprint.caches else None,
                "state_bytes": footprint.state_bytes if footprint.caches else None,
                "trimming": footprint.trimming if footprint.caches else None,
            },
            "workload": None if work is None else asdict(work),
            "host": asdict(self.host),
            "room": asdict(self.room),
            "mechanisms": [asdict(one) for one in self.mechanisms],
            "remarks": list(self.remarks),
            "not_known": list(self.unknown),
        }


def make_report(
    spec: GenerateSpec, model: ModelFacts, work: WorkloadFacts | None, host: HostFacts, draft: DraftFacts | None = None
) -> Report:
    """A function of the facts alone."""
    footprint = model.footprint(host.device, spec.model.dtype)
    return Report(
        spec=spec,
        model=model,
        dtype=model.computing_dtype(host.device, spec.model.dtype),
        footprint=footprint,
        work=work,
        host=host,
        room=find_room(spec, footprint, work, host),
        mechanisms=tuple(advise(spec, model, work, host, draft)),
        remarks=tuple(remarks(spec, model, work, host)),
        unknown=tuple(unknowns(spec, model, work, host, draft)),
    )
