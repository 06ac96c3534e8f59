"""What the repositories share: the session, the clock, and rows turned into values."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol, TypeVar

from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session
from sqlalchemy.sql import Executable

from pipeline.db.base import Base


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


V = TypeVar("V", bound=_Dataclass)


def utc_now() -> datetime:
    """For people and for order by age; no lease decision rests on it."""
    return datetime.now(UTC)


def to_value(row: Base, kind: type[V]) -> V:
    """A frozen value with the row's columns of the same names."""
    return kind(**{field.name: getattr(row, field.name) for field in fields(kind)})


class Repository:
    """Queries over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def _changed(self, statement: Executable) -> int:
        """Run an UPDATE or DELETE; how many rows it matched."""
        result = self._session.execute(statement)
        assert isinstance(result, CursorResult)
        return result.rowcount
