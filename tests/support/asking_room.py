"""A small room whose tools ask before they do anything, and a turn that waits in it."""

from __future__ import annotations

import itertools
from pathlib import Path

from chordage.orchestrator import stages, views
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.views import TurnView
from chordage.tasks.schema import request_from
from chordage.workers import local

MODULES = itertools.count()  # Python keeps a module of a name: two rooms of one process must not share one

AGENT = """\
name = "ada"
model = "scripted:script.yaml"
tools = ["{module}:deploy", "{module}:send", "{module}:wipe", "{module}:hold"]
"""
SCRIPT = """\
- {when: deploy, tool_calls: [{name: deploy, arguments: {env: prod}}]}
- {when: deploy, text: "It came to this: {results}"}
- {when: send, tool_calls: [{name: send, arguments: {to: bob}}, {name: send, arguments: {to: eve}}]}
- {when: send, text: "It came to this: {results}"}
- {when: wipe, tool_calls: [{name: wipe, arguments: {}}]}
- {when: wipe, text: "It came to this: {results}"}
- {when: pick, tool_calls: [{name: pick, arguments: {}}]}
- {when: pick, text: "It came to this: {results}"}
- {when: hold, tool_calls: [{name: hold, arguments: {}}]}
- {when: hold, text: "It came to this: {results}"}
"""
TOOLS = '''\
import pathlib
import time

from chordage import Context, Suspend, tool

HERE = pathlib.Path(__file__).parent
OK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


@tool(effect="unsafe")
def deploy(env: str, ctx: Context) -> str:
    """Wants an answer of a certain shape."""
    if ctx.decision is None:
        raise Suspend(f"May {env} be\\ndeployed to?", schema=OK, expires_in=3600, on_expiry="escalate")
    return f"deployed to {env}"


@tool(effect="pure")
def send(to: str, ctx: Context) -> str:
    """Any answer will do."""
    if ctx.decision is None:
        raise Suspend(f"May {to} be written to?")
    return f"sent to {to}"


@tool(effect="pure")
def wipe() -> str:
    """A yes to this has no words."""
    raise Suspend("Really?", schema={"type": ["object", "null"]}, resume_mode="use_decision_as_tool_result")


@tool(effect="pure")
def hold(ctx: Context) -> str:
    """Once it may go on it leaves the file `holding`, and waits until it is cancelled."""
    if ctx.decision is None:
        raise Suspend("May I?")
    (HERE / "holding").touch()
    while not ctx.cancelled:
        time.sleep(0.02)
    return "cancelled"
'''


def write(folder: Path) -> Path:
    module = f"asking_room_tools_{next(MODULES)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.toml").write_text(AGENT.format(module=module))
    (folder / "script.yaml").write_text(SCRIPT)
    (folder / f"{module}.py").write_text(TOOLS)
    return folder


def waiting_turn(rt: Runtime, text: str, *, space: str | None = None, **fields: object) -> TurnView:
    """A turn that was carried out until it waits for a decision. `space`: of the caller that sent it."""
    turn_id = stages.admit(rt, request_from({"text": text, **fields}, source="test", space=space))[0].turn_id
    local.carry_out(rt, local.begin(rt, views.turn(rt.store, turn_id)))
    turn = views.turn(rt.store, turn_id)
    assert turn.reason == "suspended", turn.fate
    return turn
