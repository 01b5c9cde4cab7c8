"""The model of the rig's room: what it says follows from the message, which is a plan in JSON (support.rig.Plan)."""

from __future__ import annotations

import json
import time
from pathlib import Path

from chordage.orchestrator.core.model import UserSays
from chordage.orchestrator.core.transcript import ACTION_RESULTS
from chordage.orchestrator.gateways.models.script import PromptPosition

LEDGER = Path(__file__).with_name("ledger.jsonl")
GATE = Path(__file__).with_name("gate")
PIECE = 10  # characters of a planner's stream at a time
IN_VAIN = 600.0  # seconds; no test waits that long


def reply(prompt, attempt):
    position = PromptPosition.of(prompt)
    said = json.loads(position.user)
    return plan_round(said) if "info" in said else speak(prompt, said, position.index)


def speak(prompt, plan, index):
    hangs = plan["hangs"] and not is_asked(plan["id"])
    note(what="model", plan=plan["id"], index=index)
    if hangs:
        return {"text": "too late", "latency": IN_VAIN}
    until = time.monotonic() + IN_VAIN
    while plan["gated"] and not GATE.exists() and time.monotonic() < until:
        time.sleep(0.05)
    if index >= plan["rounds"] or is_told_what_was_done(prompt):
        return {"text": f"done {plan['id']}: {{results}}", "latency": plan["latency"]}
    calls = [
        {"name": name, "arguments": arguments(name, plan, f"{plan['id']}.{index}.{n}")}
        for n, name in enumerate(plan["tools"])
    ]
    return {"tool_calls": calls, "latency": plan["latency"]}


SUB_AGENTS = ("ask_spread",)


def arguments(name, plan, who):
    """A sub-agent gets a plan of one round with tools that may run again."""
    if name not in SUB_AGENTS:
        return {"who": who, "seconds": plan["seconds"]}
    return {"message": json.dumps({**plan, "id": who, "rounds": 1, "tools": ["pure", "idempotent"]})}


def is_told_what_was_done(prompt):
    return any(isinstance(said, UserSays) and said.text.startswith(ACTION_RESULTS) for said in prompt.said)


def plan_round(asked):
    """As a planner: the same tools in each round. The last command of a round is the same in every round."""
    plan, index = json.loads(asked["input"]["user_input"]), asked["info"]["round_index"]
    note(what="planner", plan=plan["id"], round=index)
    last = len(plan["tools"]) - 1
    whose = [f"{plan['id']}.{index}.{n}" if n < last else f"{plan['id']}.same" for n in range(last + 1)]
    commands = [
        {"purpose": f"{name} {who}", "tool_name": name, "tool_kwargs": {"who": who, "seconds": plan["seconds"]}}
        for name, who in zip(plan["tools"], whose, strict=True)
    ]
    decided = {"next_action": "execute", "execution_commands": commands}
    return decision(decided if index < plan["rounds"] else {"next_action": "response"}, plan)


def decision(decided, plan):
    if not plan["tail"]:
        return {"text": json.dumps(decided), "latency": plan["latency"]}
    text = json.dumps({**decided, "why": "x" * 400})
    return {"text": text, "latency": plan["latency"], "chunk": PIECE, "pace": plan["tail"] * PIECE / len(text)}


def is_asked(plan):
    lines = LEDGER.read_text().rpartition("\n")[0].splitlines() if LEDGER.exists() else []
    return any((fact := json.loads(line))["what"] == "model" and fact["plan"] == plan for line in lines)


def note(**fact):
    with LEDGER.open("ab", buffering=0) as ledger:
        ledger.write(json.dumps({**fact, "at": time.time()}).encode() + b"\n")
