"""``python -m workers.engines.benching``: a benchmark request as JSON on stdin, its document as JSON on stdout.

Talk goes to stderr. Starts with the environment of :func:`workers.blas.blas_environment`, as children do.
"""

from __future__ import annotations

import os
import sys

import orjson
from pydantic import ValidationError

from pipeline.errors import ExitCode, PipelineError, SpecError
from pipeline.specs.bench import BenchArm, BenchRequest
from workers.engines.benching.runs import ArmRun


def main() -> int:
    # What a library prints must not end up in the document.
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # transformers imports torch wherever it is installed: seconds and memory that no arm asked for.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from workers.engines.benching.document import build_document
    from workers.engines.benching.session import run_session

    try:
        request = _read(sys.stdin.buffer.read())
        document = build_document(run_session(request, _tell))
    except PipelineError as error:
        _say(f"error: {error}")
        if error.hint:
            _say(f"hint: {error.hint}")
        return int(error.exit_code)
    with outgoing:
        outgoing.write(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS))
    _release()
    return int(ExitCode.OK)


def _read(data: bytes) -> BenchRequest:
    try:
        return BenchRequest.model_validate_json(data)
    except ValidationError as error:
        raise SpecError(f"this is no benchmark: {error}") from error


def _release() -> None:
    """A thread that used MLX and does not do this sometimes aborts the process at exit."""
    import mlx.core as mx

    mx.clear_streams()


def _tell(stage: str, arm: BenchArm, run: ArmRun) -> None:
    _say(f"{stage:>8}  {arm.name:<12} {run.seconds:7.2f} s  {run.tokens_per_s:8.1f} output tokens/s")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
