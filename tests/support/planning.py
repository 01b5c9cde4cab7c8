"""A planner that is scripted: plans as it writes them, and what it was asked."""

from __future__ import annotations

import json
from typing import Any

from chordage.orchestrator.core.model import Prompt, UserSays
from support.fakes import Script, spoken


def plan_of(*commands: str, action: str = "execute") -> str:
    made = [
        {"purpose": f"p{number}", "tool_name": tool, "tool_kwargs": {"n": number}, "todo_suggestion": ""}
        for number, tool in enumerate(commands)
    ]
    return json.dumps({"next_action": action, "execution_commands": made})


def planner_request(prompt: Prompt) -> dict[str, Any] | None:
    """What the planner is asked; None where it is the answer that is asked for."""
    last = prompt.said[-1]
    return json.loads(last.text) if isinstance(last, UserSays) and last.text.startswith('{"input"') else None


def planner(*plans: str) -> Script:
    """These plans, one after the other; then `response`, and an answer that repeats what it was shown."""

    def reply(prompt: Prompt):
        asked = planner_request(prompt)
        if asked is None:
            return spoken("answer: " + " ".join(said.text for said in prompt.said if isinstance(said, UserSays)))
        index = asked["info"]["round_index"]
        return spoken(plans[index] if index < len(plans) else plan_of(action="response"))

    return reply
