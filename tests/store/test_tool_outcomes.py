"""How the newest calls of each tool ended, by agent; older calls than those of the window are not read."""

from __future__ import annotations

from sqlalchemy import insert

from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.store import schema, tool_outcomes
from chordage.orchestrator.store.tool_outcomes import ToolOutcomes
from support.rows import NOW, a_run

DONE = {CallStatus.SUCCEEDED, CallStatus.FAILED}


def call(store, number, tool, status):
    row = {
        "id": f"c{number:03}", "run_id": "r1", "thread_id": "t1", "step": number, "place": 0, "ask_id": f"a{number}",
        "generation": 1, "tool": tool, "arguments": {}, "effect": "pure", "status": status.value, "resends": 0,
        "expiries": 0, "ended_at": NOW if status in DONE else None,
    }  # fmt: skip
    with store.write() as tx:
        tx.execute(insert(schema.calls), row)


def test_calls_are_counted_by_agent_and_tool(store):
    a_run(store)
    for number, (tool, status) in enumerate(
        [("pay", CallStatus.FAILED), ("pay", CallStatus.SUCCEEDED), ("look", CallStatus.RUNNING)]
    ):
        call(store, number, tool, status)

    with store.read() as tx:
        assert tool_outcomes.of_newest(tx, 10) == {
            ("ada", "pay"): ToolOutcomes(calls=2, failed=1),
            ("ada", "look"): ToolOutcomes(calls=1, failed=0),
        }
        assert tool_outcomes.of_newest(tx, 2) == {
            ("ada", "pay"): ToolOutcomes(calls=1, failed=0),
            ("ada", "look"): ToolOutcomes(calls=1, failed=0),
        }


def test_without_calls_there_is_nothing(store):
    with store.read() as tx:
        assert tool_outcomes.of_newest(tx, 10) == {}
