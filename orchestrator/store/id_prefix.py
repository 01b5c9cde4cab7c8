"""Ids that begin with some letters. They are neighbours in the primary key, so each look-up reads a few rows."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Column, select

from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import calls, runs, suspensions, threads, turns

MAX_MATCHES = 4  # ids that begin with the same letters


class Match(NamedTuple):
    id: str
    of: str  # the thread of a turn, the turn of a run, the thread itself, the run of a call, the call of a suspension


def turns_beginning(tx: Tx, start: str) -> list[Match]:
    return _matches(tx, start, turns.c.id, turns.c.thread_id)


def runs_beginning(tx: Tx, start: str) -> list[Match]:
    return _matches(tx, start, runs.c.id, runs.c.turn_id)


def threads_beginning(tx: Tx, start: str) -> list[Match]:
    return _matches(tx, start, threads.c.id, threads.c.id)


def calls_beginning(tx: Tx, start: str) -> list[Match]:
    return _matches(tx, start, calls.c.id, calls.c.run_id)


def suspensions_beginning(tx: Tx, start: str) -> list[Match]:
    return _matches(tx, start, suspensions.c.id, suspensions.c.call_id)


def _matches(tx: Tx, start: str, key: Column[Any], of: Column[Any]) -> list[Match]:
    """Reads a few rows from `start` on, in the order of the database: never a scan."""
    near = select(key, of).where(key >= start).order_by(key).limit(MAX_MATCHES)
    return [Match(*row) for row in tx.execute(near) if row[0].startswith(start)]
