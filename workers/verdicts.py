"""What a child's misfortune becomes: the errors of the pipeline. Knows nothing about what the child was asked to do."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.errors import ChildDied, ChildStalled, JobError, TransientError
from pipeline.formats.messages import WireError
from pipeline.ports import JsonObject, Verdict
from workers.process import ChildProcess

#: What a message raises when its fields are not what they must be.
MALFORMED = (WireError, KeyError, TypeError, ValueError)


def failure(message: JsonObject) -> JobError | TransientError:
    """The error in a ``failed`` message: the class of its code where there is one, else the root with that code.

    Raises:
        WireError: neither ``job`` nor ``transient`` is its class.
    """
    roots: dict[str, type[JobError] | type[TransientError]] = {"job": JobError, "transient": TransientError}
    root = roots.get(message["class"])
    if root is None:
        raise WireError(f"failed with unknown class {message['class']!r}")
    code = message["code"]
    error = next((kind for kind in _family(root) if kind.code == code), root)(message["message"])
    error.hint, error.code = message.get("hint"), code
    if isinstance(error, JobError):
        error.verdicts = tuple(Verdict(**one) for one in message.get("verdicts", ()))
    return error


def _family(root: type[JobError] | type[TransientError]) -> Iterator[type[JobError] | type[TransientError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _family(kind)


def kill_stalled(child: ChildProcess, limit_s: float, phase: str) -> ChildStalled:
    """End a child that did nothing for ``limit_s``; the error that says so."""
    child.kill()
    return ChildStalled(
        f"the engine's process {child.pid} made no progress for {limit_s:g} s while {phase}{child.quote()}"
    )


def kill_confused(child: ChildProcess, phase: str, reason: Exception) -> ChildDied:
    """End a child whose messages cannot be true; the error that says why."""
    child.kill()
    return ChildDied(f"the engine's process {child.pid} broke its protocol while {phase}: {reason}{child.quote()}")
