"""What the repositories share: the session, the clock, and rows turned into values."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol, TypeVar

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session
from sqlalchemy.sql import Executable

from pipeline.db.base import Base
from pipeline.secrecy import mask_secrets


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


V = TypeVar("V", bound=_Dataclass)


#: Longest text of an error that is kept with a row, in characters.
ERROR_CHARS = 2_000

#: Longest code of an error, as the column has it.
ERROR_CODE_CHARS = 64


def utc_now() -> datetime:
    """This host's clock: for people and for order by age; no lease decision rests on it."""
    return datetime.now(UTC)


def clip(text: str) -> str:
    """An error's text as a row can hold it: bounded, without passwords, and without the NUL that PostgreSQL refuses."""
    return mask_secrets(text).replace("\x00", "\N{SYMBOL FOR NULL}")[:ERROR_CHARS]


def to_value(row: Base, kind: type[V]) -> V:
    """A frozen value with the row's columns of the same names."""
    return kind(**{field.name: getattr(row, field.name) for field in fields(kind)})


class Repository:
    """Queries over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def _now(self) -> datetime:
        """The database's clock, where hosts have their own; one that is an hour ahead must not park a shard."""
        if self._session.get_bind().dialect.name == "postgresql":
            now = self._session.scalar(select(func.clock_timestamp()))
            assert isinstance(now, datetime)
            return now
        return utc_now()

    def _insert_missing(self, table: type[Base], values: dict[str, Any]) -> None:
        """Insert a row unless one with its key is there, also when another process does the same at this moment."""
        dialect = postgresql if self._session.get_bind().dialect.name == "postgresql" else sqlite
        self._session.execute(dialect.insert(table).values(values).on_conflict_do_nothing())

    def _changed(self, statement: Executable) -> int:
        """Run an UPDATE or DELETE; how many rows it matched."""
        result = self._session.execute(statement)
        assert isinstance(result, CursorResult)
        return result.rowcount
