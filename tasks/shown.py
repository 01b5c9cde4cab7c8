"""What a monitor such as Flower shows of a message: the thread, the agent, the tools and the ids. Nothing that anybody
said.

It is in the headers alone, and nothing is decided by it. As the text of a dict, so that Flower finds
`kwargs:thread=api:customer-4`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from chordage.orchestrator.core import message
from chordage.orchestrator.core.records import Subject

# Of what others send, by the name of the argument. Texts, payloads and reasons are not among them.
BY_NAME = {"thread_id": "thread", "thread": "thread", "agent": "agent", "turn": "turn", "verb": "verb"}
INTAKE = "chordage.tasks.shown_intake:Intake"  # looked up by workers alone: it brings all of a worker along
LONGEST = 200  # characters: what was sent is not validated yet


def headers(kwargs: Mapping[str, object], *, of: Subject | None = None, tools: Collection[str] = ()) -> dict[str, Any]:
    """Of a message of ours. Celery would walk and quote every argument of every message for it."""
    about = {"thread": of.thread_id, "agent": of.agent} if of else {}
    names = ", ".join(dict.fromkeys(tools))
    named = {"tool": names} if names else {}
    # A list of tasks cuts what is long: so the tools stand in the column of arguments as well, of which ours have none.
    return {"argsrepr": names, "kwargsrepr": repr({**about, **named, **kwargs})}


def of_others(given: Mapping[str, Any]) -> str:
    """Of the arguments of a message that somebody else has sent."""
    found = {name: given[key][:LONGEST] for key, name in BY_NAME.items() if isinstance(given.get(key), str)}
    if "thread" in found:
        found["thread"] = message.placed(message.CALLERS, found["thread"])  # as it is called from here on
    return repr(found)
