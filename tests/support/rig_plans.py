"""Turns of a rig that plan their rounds: what their planner was asked over HTTP, and what must have come of it.

Of the commands of a round the last is the same in every round (rig_room/model.py).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from chordage.orchestrator.core.transcript import ACTION_RESULTS
from support.rig import Plan, Rig


def planner_requests(rig: Rig, plan: Plan) -> list[dict[str, Any]]:
    """What the planner saw of the work, at each call for this turn."""
    asked = [json.loads(said[0]) for said in _requests(rig)]
    return [one["info"] for one in asked if "info" in one and one["input"]["user_input"] == plan.text]


def check_planned(rig: Rig, plan: Plan, turn_id: str, *, rounds: int) -> list[dict[str, Any]]:
    """Every record once, in the order of the plans, and each planner saw what there was before its round."""
    run, width = rig.row("turns", id=turn_id)["run_id"], len(plan.tools)
    logs: list[dict[str, Any]] = rig.row("journal", run_id=run, kind="RunFinished")["body"]["extra"]["tool_logs"]
    _each_command_has_its_record(logs, _commands(plan, rounds))
    calls = sorted(rig.rows("calls", run_id=run), key=lambda row: (row["step"], row["place"]))
    assert [log["call_id"] for log in logs] == [call["id"] for call in calls]
    bodies = [row["body"] for row in rig.rows("journal", run_id=run, kind="PlanCommitted")]
    assert [body["round"] for body in bodies] == list(range(rounds))
    for info in planner_requests(rig, plan):
        before = info["round_index"] * width
        assert info["done_plans"] == logs[:before]
        assert info["last_round_result"] == logs[max(0, before - width) : before], "the last round and no other"
    assert len(_shown_before_the_answer(rig, plan)) == len(logs), "the answer is given from all of it"
    return logs


def check_no_plan_was_requested_again(rig: Rig) -> None:
    """Once it was recorded."""
    plan_of = {row["run_id"]: json.loads(row["text"])["id"] for row in rig.rows("turns")}
    recorded = {
        (plan_of[row["run_id"]], row["body"]["round"]): row["at"].timestamp()
        for row in rig.rows("journal", kind="PlanCommitted")
    }
    asked = rig.facts(what="planner")
    assert [fact for fact in asked if fact["at"] > recorded[fact["plan"], fact["round"]]] == []


def key_of(call: dict[str, Any]) -> str:
    return f"{call['run_id']}:{call['ask_id']}:{call['generation']}"


def times(rig: Rig, phase: str) -> Counter[str]:
    """How often each call of the turns so far began, or ended."""
    return Counter(fact["key"] for fact in rig.facts(what="tool", phase=phase))


def lingering(rig: Rig, turn_id: str, index: int) -> list[dict[str, Any]]:
    """The calls of a round that are at work while all the others are done; none before that."""
    run, step = rig.row("turns", id=turn_id)["run_id"], 2 * (index + 1)
    still = [row for row in rig.rows("calls", run_id=run, step=step) if row["status"] != "succeeded"] if run else []
    begun = times(rig, "begin")
    is_so = len(still) == 2 and {row["tool"] for row in still} == {"lingers"} and all(begun[key_of(r)] for r in still)
    return still if is_so else []


def _each_command_has_its_record(logs: list[dict[str, Any]], commands: list[tuple[str, str]]) -> None:
    found = [(log["tool_name"], log["kwargs"]["who"], log["purpose"], log["result"], log["status"]) for log in logs]
    assert found == [(tool, who, f"{tool} {who}", f"{tool} {who}", "ok") for tool, who in commands]


def _commands(plan: Plan, rounds: int) -> list[tuple[str, str]]:
    last = len(plan.tools) - 1
    return [
        (tool, f"{plan.id}.same" if n == last else f"{plan.id}.{index}.{n}")
        for index in range(rounds)
        for n, tool in enumerate(plan.tools)
    ]


def _shown_before_the_answer(rig: Rig, plan: Plan) -> dict[str, Any]:
    """By purpose, in the last request for the answer."""
    told = [said[1] for said in _requests(rig) if said[0] == plan.text][-1]
    assert told.startswith(ACTION_RESULTS)
    found: dict[str, Any] = json.loads(told.splitlines()[1])
    return found


def _requests(rig: Rig) -> list[list[str]]:
    """What the user says in each request that the model's server got."""
    bodies = [request.body["messages"] for request in rig.model.requests]
    return [[message["content"] for message in messages if message["role"] == "user"] for messages in bodies]
