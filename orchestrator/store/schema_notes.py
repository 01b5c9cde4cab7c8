"""Notes in the journal that the database writes by itself: a turn was queued, or ended without a run; a call was put
aside; somebody decided.

They stand in the journal so that one order, one cursor and one position hold for all that the fleet is told. A trigger
costs no statement, and nobody who ends a turn in the queue, now or later, can forget it.
"""

from __future__ import annotations

from sqlalchemy import DDL, event

from chordage.orchestrator.store.schema import metadata

_BY_ITSELF = "NEW.status = 'done' AND NEW.run_id IS NULL"
_QUEUED = "turn: id, agent: agent, group: grp, origin: origin, tenant: tenant"
_DROPPED = "turn: id, disposition: disposition, detail: detail, into: into_turn"
_SUSPENDED = "suspension: id, run: run_id, call: call_id, tool: tool, why: why"
_DECIDED = "decision: id, run: run_id, call: call_id, suspension: suspension_id, action: action"
_OF_DECISION = "(SELECT thread_id FROM suspensions WHERE suspensions.id = NEW.suspension_id)"

# Name, when, whether; then what is noted, each as kind, body, time and thread, in this order.
_TRIGGERS = (
    ("note_arrival", "AFTER INSERT ON turns", "NEW.arrival IS NOT NULL", (
        ("TurnQueued", _QUEUED, "queued_at", "NEW.thread_id", "1 = 1"),
        ("TurnDropped", _DROPPED, "done_at", "NEW.thread_id", _BY_ITSELF),
    )),
    ("note_drop", "AFTER UPDATE OF status ON turns", f"OLD.status <> 'done' AND {_BY_ITSELF}", (
        ("TurnDropped", _DROPPED, "done_at", "NEW.thread_id", "1 = 1"),
    )),
    ("note_suspension", "AFTER INSERT ON suspensions", "NEW.why <> 'child'", (
        ("CallSuspended", _SUSPENDED, "created_at", "NEW.thread_id", "1 = 1"),
    )),
    ("note_decision", "AFTER INSERT ON decisions", "NEW.id IS NOT NULL", (
        ("CallDecided", _DECIDED, "created_at", _OF_DECISION, "1 = 1"),
    )),
)  # fmt: skip


def statements(dialect: str) -> list[str]:
    make = "json_build_object" if dialect == "postgresql" else "json_object"
    made: list[str] = []
    for name, when, whether, notes in _TRIGGERS:
        body = " ".join(_insert(make, *note) for note in notes)
        if dialect == "postgresql":
            # Whoever writes the row, and whatever stands in that session's search path.
            called = f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS"
            made.append(f"{called} $$ BEGIN {body} RETURN NULL; END $$")
            body, row = f"EXECUTE FUNCTION {name}()", f"FOR EACH ROW WHEN ({whether})"
        else:
            body, row = f"BEGIN {body} END", f"FOR EACH ROW WHEN {whether}"
        made.append(f"CREATE TRIGGER {name} {when} {row} {body}")
    return made


def _insert(make: str, kind: str, body: str, at: str, thread: str, whether: str) -> str:
    pairs = (pair.split(": ") for pair in body.split(", "))
    said = ", ".join(f"'{key}', NEW.{column}" for key, column in pairs)
    columns = "thread_id, run_id, step, kind, body, at"
    return (
        f"INSERT INTO journal ({columns}) SELECT {thread}, NEW.id, 0, '{kind}', {make}({said}), NEW.{at} "
        f"WHERE {whether};"
    )


for _dialect in ("sqlite", "postgresql"):
    for _made in statements(_dialect):
        event.listen(metadata, "after_create", DDL(_made.replace("%", "%%")).execute_if(dialect=_dialect))  # type: ignore[no-untyped-call]  # has no types
