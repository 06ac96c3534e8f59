"""What the exit codes mean, for ``--help`` and for ``docs/errors.md``."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.errors import ExitCode

MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.INTERNAL: "unexpected error",
    ExitCode.USAGE: "wrong options, settings or input",
    ExitCode.NOT_FOUND: "no such job, index, model or package",
    ExitCode.UNAVAILABLE: "database, broker or store out of reach, or schema outdated",
    ExitCode.CONFLICT: "the state does not allow it",
    ExitCode.NO_WORKER: "no live worker serves the queue",
    ExitCode.ALL_ERRORED: "the job completed and every item erred",
    ExitCode.JOB_FAILED: "the job failed, or cannot be done here",
    ExitCode.JOB_CANCELLED: "the job was cancelled",
    ExitCode.JOB_EXPIRED: "the job expired",
}

#: What a shell gives a command that SIGINT ended.
INTERRUPTED = 130

# "\b" tells click to keep the lines as they are.
EPILOG = "\n".join(
    ["\b", "Exit codes:", *(f"  {code:>3}  {text}" for code, text in MEANINGS.items()), f"  {INTERRUPTED}  interrupted"]
)
