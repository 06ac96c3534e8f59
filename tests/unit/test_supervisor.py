"""What a supervisor decides by itself: the environment of a child, and what a child's failure becomes."""

from __future__ import annotations

import sys

import pytest

from pipeline.errors import ChildDied, JobError, NoChatTemplate, StoreUnavailable, TransientError
from pipeline.formats.messages import WireError
from workers.supervisor import child_environment
from workers.verdicts import failure


def failed(**fields: object) -> dict[str, object]:
    return {"type": "failed", "class": "job", "code": "job_error", "message": "no", "hint": None, **fields}


def test_failure_of_a_known_code_is_its_own_class() -> None:
    error = failure(failed(code="no_chat_template", message="the model has none", hint="use --raw"))

    assert type(error) is NoChatTemplate
    assert (error.message, error.hint, error.code) == ("the model has none", "use --raw", "no_chat_template")


def test_failure_looks_through_grandchildren_of_the_root() -> None:
    assert type(failure(failed(**{"class": "transient", "code": "engine_crashed"}))) is ChildDied
    assert type(failure(failed(**{"class": "transient", "code": "store_unavailable"}))) is StoreUnavailable


def test_failure_keeps_a_code_that_has_no_class() -> None:
    job, transient = failure(failed(code="odd")), failure(failed(**{"class": "transient", "code": "memory_short"}))

    assert (type(job), job.code) == (JobError, "odd")
    assert (type(transient), transient.code) == (TransientError, "memory_short")
    assert JobError.code == "job_error"


def test_failure_never_takes_a_class_from_the_other_root() -> None:
    assert type(failure(failed(**{"class": "transient", "code": "no_chat_template"}))) is TransientError


def test_failure_of_an_unknown_class_is_refused() -> None:
    with pytest.raises(WireError, match="item"):
        failure(failed(**{"class": "item"}))


def test_child_environment_keeps_what_the_caller_sets() -> None:
    environ = child_environment({"HOME": "/home/me", "TOKENIZERS_PARALLELISM": "true", "LD_PRELOAD": "/lib/mine.so"})

    assert environ["HOME"] == "/home/me"
    assert environ["TOKENIZERS_PARALLELISM"] == "true"
    assert environ["LD_PRELOAD"].split(":")[-1] == "/lib/mine.so"
    assert environ["PYTHONUNBUFFERED"] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="only MLX's Linux wheel has a slow BLAS")
def test_child_environment_puts_a_real_blas_first_on_linux() -> None:
    environ = child_environment({})

    assert "openblas" in environ["LD_PRELOAD"]
    assert environ["MLX_DISABLE_COMPILE"] == "1"
