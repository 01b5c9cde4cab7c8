"""How a database would carry a hot statement out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.statements import PreparedStatement


def explained(tx: Tx, hot: PreparedStatement, binds: Mapping[str, Any], how: str) -> list[tuple[Any, ...]]:
    """What `how` says of it: "EXPLAIN", say."""
    compiled, driver = hot.compiled(tx.dialect), tx.connection.dbapi_connection
    assert driver is not None
    if tx.dialect.name == "sqlite":
        cursor = driver.cursor()
        cursor.execute(f"{how} {compiled.sql}", compiled.values(binds))
    else:
        cursor = tx.dialect.loaded_dbapi.RawCursor(driver)
        cursor.execute(f"{how} {compiled.sql}", compiled.in_order(binds))
    return list(cursor.fetchall())
