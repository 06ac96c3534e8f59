"""How a command fails: a message, a way out, the chain of causes, an exit code. A traceback only with ``--debug``."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from pipeline.cli.exits import INTERRUPTED
from pipeline.cli.output import talk
from pipeline.errors import ExitCode, PipelineError

if TYPE_CHECKING:
    from pipeline.cli.context import Context


def run_guarded(command: Callable[[], object], context: Context) -> int:
    """Run ``command``; returns the exit code, having said on stderr what went wrong."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        result = command()
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.OK
    except (click.Abort, KeyboardInterrupt):
        talk("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone. Python flushes stdout once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _show_usage_error(error)
    except Exception as error:  # noqa: BLE001 - the last seam: what nobody expected becomes one line and a code
        if context.debug:
            talk(traceback.format_exc().rstrip())
        return _show_expected(error) if isinstance(error, PipelineError) else _show_unexpected(error, context)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM unwinds like Ctrl-C does, so that processes this one started are ended with it."""
    del frame
    raise SystemExit(128 + number)


def _show_usage_error(error: click.ClickException) -> int:
    talk(f"error: {error.format_message()}")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        talk(f"hint: {error.ctx.command_path} --help")
    return ExitCode.USAGE


def _show_expected(error: PipelineError) -> int:
    talk(f"error: {error}")
    for cause in _causes(error):
        talk(f"cause: {cause}")
    if error.hint:
        talk(f"hint: {error.hint}")
    return error.exit_code


def _show_unexpected(error: Exception, context: Context) -> int:
    talk(f"error: unexpected {type(error).__name__}: {_first_line(error)}")
    if not context.debug:
        talk("hint: `pipeline --debug ...` shows where; please report it")
    return ExitCode.INTERNAL


def _causes(error: BaseException) -> Iterator[str]:
    """One line for each exception that this one was raised from, unless the line above says the same."""
    said = str(error)
    while (cause := error.__cause__) is not None:
        line = _first_line(cause)
        if line and line not in said:
            yield line if isinstance(cause, PipelineError) else f"{type(cause).__name__}: {line}"
        error, said = cause, line


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
