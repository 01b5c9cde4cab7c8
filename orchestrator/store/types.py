"""Column types that read the same from SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer
from sqlalchemy.types import TypeDecorator


class Moment(TypeDecorator[datetime]):
    """A UTC time. SQLite forgets the zone on the way in; it is put back on the way out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base class's signature
        if value is not None and value.tzinfo is None:
            raise ValueError(f"a time without a zone was to be stored: {value}")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base class's signature
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# As it was written, on both databases: PostgreSQL's jsonb would sort the keys. No statement looks inside.
Json = JSON(none_as_null=True)

# SQLite numbers rows by itself only where the key is a plain INTEGER.
Serial = BigInteger().with_variant(Integer(), "sqlite")
