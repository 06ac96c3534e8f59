"""Every error this project raises on purpose: one tree, each with a stable code, a place and a way out.

The docstring of a class is its default message. What is raised for a *user* carries ``hint`` (the way out); what ends
one *item* is an :class:`ItemError`; what ends a whole job is a :class:`JobError`; what may go away by itself is a
:class:`TransientError`. This module needs no other.
"""

from __future__ import annotations

import inspect
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pipeline.ports import Verdict


class ExitCode(IntEnum):
    """Exit codes of the command line; documented in ``docs/errors.md``."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    CONFLICT = 5
    NO_WORKER = 6
    ALL_ERRORED = 10
    JOB_FAILED = 11
    JOB_CANCELLED = 12
    JOB_EXPIRED = 13


class PipelineError(Exception):
    """Something went wrong in the pipeline."""

    code: str = "pipeline_error"
    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __init__(self, message: str | None = None, *, hint: str | None = None, place: str | None = None) -> None:
        self.message = message or inspect.cleandoc(type(self).__doc__ or self.code).splitlines()[0]
        self.hint = hint
        self.place = place
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


# --- what the user can mend ------------------------------------------------------------------------------------------


class UsageError(PipelineError):
    """The request cannot be understood."""

    code = "usage_error"
    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """The configuration is not valid."""

    code = "config_invalid"


class SpecError(UsageError):
    """The job's specification is not valid."""

    code = "spec_invalid"


class ContractConflict(SpecError):
    """The contract promises what one of the job's options cannot keep."""

    code = "contract_conflict"


class InputInvalid(UsageError):
    """The input file has invalid lines."""

    code = "input_invalid"


class NotFound(PipelineError):
    """There is nothing of that name."""

    code = "not_found"
    exit_code = ExitCode.NOT_FOUND


class Conflict(PipelineError):
    """The state of the thing does not allow this."""

    code = "conflict"
    exit_code = ExitCode.CONFLICT


class NothingToRetry(Conflict):
    """No item is left that could end otherwise."""

    code = "nothing_to_retry"


class ArmsDiffer(Conflict):
    """Arms of the benchmark cannot be compared."""

    code = "arms_differ"


class AlreadyExists(Conflict):
    """A row with this key exists already."""

    code = "already_exists"


class SchemaOutdated(PipelineError):
    """The database schema is not the one this version needs."""

    code = "schema_outdated"
    exit_code = ExitCode.UNAVAILABLE


class NoWorker(PipelineError):
    """No live worker serves the queue."""

    code = "no_worker"
    exit_code = ExitCode.NO_WORKER


# --- what may go away by itself --------------------------------------------------------------------------------------


class TransientError(PipelineError):
    """Something the work needs is out of reach for the moment."""

    code = "unavailable"
    exit_code = ExitCode.UNAVAILABLE


class EnvironmentFault(TransientError):
    """The surroundings do not let the work go on; however long that lasts, it is no failed attempt."""

    code = "environment_fault"


class DatabaseUnavailable(EnvironmentFault):
    """The database does not answer."""

    code = "database_unavailable"


class BrokerUnavailable(EnvironmentFault):
    """The broker does not answer."""

    code = "broker_unavailable"


class StoreUnavailable(EnvironmentFault):
    """The artifact store does not answer."""

    code = "store_unavailable"


class StoreFull(EnvironmentFault):
    """The artifact store has no space left."""

    code = "store_full"


class MemoryBusy(EnvironmentFault):
    """The model does not fit beside those that are at work on this host."""

    code = "memory_busy"


class EngineFailed(TransientError):
    """The engine raised an error that names no item."""

    code = "engine_failed"

    #: Places in the shard of the items that were inside the engine; None when no item was fed.
    inside: frozenset[int] | None = None


class ChildDied(EngineFailed):
    """The engine's process ended while it held work."""

    code = "engine_crashed"


class ChildStalled(ChildDied):
    """The engine made no progress within its limit and was killed."""

    code = "engine_stalled"


class LeaseLost(TransientError):
    """The shard's lease was taken by another worker; the work done under it is discarded."""

    code = "lease_lost"


class ArtifactCorrupt(PipelineError):
    """A stored file does not have the checksum its row says."""

    code = "artifact_corrupt"


class ArtifactMissing(PipelineError):
    """A registered file is not in the store."""

    code = "artifact_missing"


# --- what ends a job, before any work --------------------------------------------------------------------------------


class JobError(PipelineError):
    """The job cannot be done."""

    code = "job_error"
    exit_code = ExitCode.JOB_FAILED

    #: What checks of accelerations had found by then; it goes on record with the end of the job.
    verdicts: tuple[Verdict, ...] = ()


class ModelNotFound(JobError):
    """The model is not on this host."""

    code = "model_not_found"
    exit_code = ExitCode.NOT_FOUND


class ModelNotAllowed(ModelNotFound):
    """The model is a folder that jobs may not name on this host."""

    code = "model_not_allowed"


class ModelNotTrusted(JobError):
    """The model brings its own code, and this host does not run it."""

    code = "model_not_trusted"


class ModelChanged(JobError):
    """The model on this host is not the one the job was submitted with."""

    code = "model_changed"


class ModelUnsupported(JobError):
    """No engine here can run this model."""

    code = "model_unsupported"


class DraftIncompatible(JobError):
    """The drafter does not speak the model's tokens."""

    code = "draft_incompatible"


class NoChatTemplate(JobError):
    """The model has no chat template."""

    code = "no_chat_template"


class CeilingUnmeasurable(JobError):
    """The contract sets a ceiling for what no host here can measure."""

    code = "ceiling_unmeasurable"


class CeilingExceeded(JobError):
    """The work does not fit under a ceiling of its contract or its host."""

    code = "ceiling_exceeded"


class ContractViolated(JobError):
    """An acceleration broke the job's contract, and the contract says that the job fails then."""

    code = "contract_violated"


class VectorsInvalid(JobError):
    """The vectors are not what the index asks for."""

    code = "vectors_invalid"


class IndexUnsound(JobError):
    """The index is not what its manifest says."""

    code = "index_unsound"


# --- what ends one item ----------------------------------------------------------------------------------------------


class ItemError(PipelineError):
    """This item cannot be answered."""

    code = "item_error"

    def __init__(self, message: str | None = None, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.item_code = code or self.code
        self.param = param


class ContextLengthExceeded(ItemError):
    """The item is longer than the model's context."""

    code = "context_length_exceeded"


class UnsupportedParameter(ItemError):
    """The item has a parameter that this engine does not honour."""

    code = "unsupported_parameter"


class InvalidValue(ItemError):
    """A parameter of the item has a value that is not allowed."""

    code = "invalid_value"


class NonFiniteVector(ItemError):
    """The model gave a vector that is not finite, or zero."""

    code = "non_finite_vector"
