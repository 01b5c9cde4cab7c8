"""The model of the rig's room: what it says follows from the message, which is a plan in JSON (support.rig.Plan)."""

from __future__ import annotations

import json
import time
from pathlib import Path

from chordage.orchestrator.gateways.models.script_files import place

LEDGER = Path(__file__).with_name("ledger.jsonl")


def reply(prompt, attempt):
    user, _, index = place(prompt)
    plan = json.loads(user)
    with LEDGER.open("ab", buffering=0) as ledger:
        fact = {"what": "model", "plan": plan["id"], "index": index, "at": time.time()}
        ledger.write(json.dumps(fact).encode() + b"\n")
    if index >= plan["rounds"]:
        return {"text": f"done {plan['id']}: {{results}}", "latency": plan["latency"]}
    calls = [
        {"name": name, "arguments": {"who": f"{plan['id']}.{index}.{n}", "seconds": plan["seconds"]}}
        for n, name in enumerate(plan["tools"])
    ]
    return {"tool_calls": calls, "latency": plan["latency"]}
