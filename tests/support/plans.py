"""How PostgreSQL would carry out the statements of the store, once it has prepared them."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import event, text

from chordage.orchestrator import store as package
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.statements import PreparedStatement

DONE = 3_000
# So many threads of one turn each, all of it over.
LONG_OVER = """
INSERT INTO threads (id, agent, arrivals, created_at, updated_at) SELECT 't' || n, 'ada', 1, now(), now() FROM n;
INSERT INTO turns (id, thread_id, arrival, agent, grp, rank, tenant, status, disposition, ready, steers, origin, sender,
    text, meta, strategy, control, source, due_at, queued_at, nudge_at, started_at, done_at, run_id)
SELECT 'turn' || n, 't' || n, 1, 'ada', 'chat', 0, 'ada', 'done', 'answered', 0, 0, 'invoke', 'service',
    'hi', '{}', 'react', 'auto', 'test', now(), now(), now(), now(), now(), 'run' || n FROM n;
INSERT INTO runs (id, thread_id, turn_id, agent, grp, tenant, strategy, control, status, reason, epoch, step, phase,
    rounds, resends, expiries, input_tokens, output_tokens, cached_tokens, cache_write_tokens, suspended, rested_ms,
    children, steers, started_at, ended_at)
SELECT 'run' || n, 't' || n, 'turn' || n, 'ada', 'chat', 'ada', 'react', 'auto', 'done', 'natural_end', 1, 3,
    'inference', 1, 0, 0, 5, 5, 0, 0, 0, 0, 0, 0, now(), now() FROM n;
INSERT INTO calls (id, run_id, thread_id, step, place, ask_id, generation, tool, arguments, effect, status, content,
    resends, expiries, ended_at)
SELECT 'call' || n || '-' || p, 'run' || n, 't' || n, 2, p, 'ask' || p, 1, 'look', '{}', 'pure', 'succeeded', 'found',
    0, 0, now() FROM n, generate_series(0, 3) p;
INSERT INTO journal (thread_id, run_id, step, kind, body, at)
SELECT 't' || n, 'run' || n, s, k, '{}', now() FROM n,
    (VALUES (0, 'UserMessage'), (1, 'AssistantTurnCommitted'), (2, 'ToolResultsCommitted'),
            (3, 'AssistantTurnCommitted'), (3, 'RunFinished')) AS kinds(s, k);
"""
SMALL = {"groups", "projection"}  # a few rows, whatever was done or is waiting


def idle_with_history(store: Store) -> None:
    """As autovacuum leaves it at night: much that is over, and nothing that is open."""
    with store.unlimited() as tx:
        tx.execute(text(f"CREATE TEMPORARY TABLE n AS SELECT n FROM generate_series(1, {DONE}) n"))
        for statement in LONG_OVER.split(";\n"):
            tx.execute(text(statement)) if statement.strip() else None
    with store.unlimited() as tx:
        tx.execute(text("ANALYZE"))


def hot_statements() -> Iterator[tuple[str, PreparedStatement]]:
    for module in pkgutil.iter_modules(package.__path__):
        for name, value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).items():
            members = value.items() if isinstance(value, Mapping) else [("", value)]
            yield from (
                (f"{module.name}.{name}{key}", hot) for key, hot in members if isinstance(hot, PreparedStatement)
            )


class Planner:
    """Which tables or indexes a plan would read from end to end, whatever they hold when it runs."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._cursor = tx.connection.cursor()
        self._cursor.execute(
            b"SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = 1 "
            b"WHERE c.relkind = 'i'"
        )
        self._leads = dict(self._cursor.fetchall())  # the column by which an index is entered

    def of_hot(self, hot: PreparedStatement) -> list[str]:
        return self.reads_whole(hot.compiled(self._tx.dialect).sql)

    def of_others(self, work: Callable[[Tx], object]) -> dict[str, list[str]]:
        """Of what it sends through the library, by statement. Nothing of it stays."""
        sent: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            sent.append(statement)

        engine = self._tx.engine
        event.listen(engine, "before_cursor_execute", note)
        try:
            work(self._tx)
        finally:
            event.remove(engine, "before_cursor_execute", note)
        return {one: whole for one in sent if (whole := self.reads_whole(_numbered(one)))}

    def reads_whole(self, sql: str) -> list[str]:
        self._cursor.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {sql}".encode())
        told = self._cursor.fetchone()[0]
        (plan,) = told if isinstance(told, list) else json.loads(told)
        return sorted({found for node in _nodes(plan["Plan"]) if (found := self._read_whole(node))})

    def _read_whole(self, node: Mapping[str, Any]) -> str | None:
        kind = node["Node Type"]
        if kind == "Seq Scan":
            return None if node["Relation Name"] in SMALL else str(node["Relation Name"])
        if "Index" not in kind:
            return None
        name = str(node["Index Name"])
        is_entered = re.search(rf"\b{self._leads[name]}\b", node.get("Index Cond", ""))
        return None if is_entered else name


def _numbered(sql: str) -> str:
    numbers: dict[str, int] = {}
    found = re.sub(r"%\((\w+)\)s", lambda m: f"${numbers.setdefault(m[1], len(numbers) + 1)}", sql)
    return found.replace("%%", "%")


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)
