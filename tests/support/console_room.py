"""A room whose names, messages, arguments and results try to break out of a page, and a client that is logged in."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import httpx

from chordage.orchestrator import stages
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views import TurnView
from support import asking_room

MODULES = itertools.count()  # Python keeps a module of a name: two rooms of one process must not share one

HOSTILE = (
    "</textarea></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'`${x}{{7*7}}<hx-partial hx-get=/x>"
    "\u202egnp\u2066x\u2069\x1b]0;t\x07a\xadb\u200bc\x9b31m\U000e0041\u3164&#x202e;&lrm;\u05d0\u05d1"
)
QUOTED = json.dumps(HOSTILE)  # also as YAML has it
AGENT = """\
name = "ada"
model = "scripted:script.yaml"
tools = ["{module}:pay", "{module}:echo", "{module}:amount"]
[permission]
allow = ["echo", "amount", "pick"]
ask = ["pay"]
"""
SCRIPT = f"""\
- when: pay
  text: {QUOTED}
  tool_calls: [{{name: pay, arguments: {{order: "17", note: {QUOTED}, amount: 12345678901234567890.10}}}}]
- when: pay
  text: "Paid: {{results}} [click](javascript:alert(1)) <b onclick=alert(1)>x</b>"
- when: echo
  tool_calls: [{{name: echo, arguments: {{text: {QUOTED}}}}}, {{name: {QUOTED}, arguments: {{}}}}]
- when: echo
  reasoning: {QUOTED}
  text: {QUOTED}
- when: amount
  tool_calls: [{{name: amount, arguments: {{order: "18"}}}}]
- when: amount
  text: "Settled: {{results}}"
- when: pick
  tool_calls: [{{name: pick, arguments: {{of: [red, blue]}}}}]
- when: pick
  text: "Picked: {{results}}"
- when: fail
  fail: {{fault: auth}}
- text: "You said: {{user}}"
"""
TOOLS = '''\
from chordage import Context, tool

HOSTILE = {hostile!r}
SCHEMA = {{
    "type": "object",
    "properties": {{
        "amount": {{"type": "integer", "title": HOSTILE, "description": HOSTILE}},
        "method": {{"enum": ["card", HOSTILE]}},
    }},
    "required": ["amount", "method"],
}}


@tool(effect="idempotent")
def pay(order: str, amount: float, note: str = "") -> str:
    """Pay an order back."""
    return f"paid {{amount}} for {{order}}"


@tool(effect="pure")
def echo(text: str) -> str:
    """Say it again."""
    return HOSTILE + text


@tool(effect="idempotent")
def amount(order: str, ctx: Context) -> str:
    """Ask how much."""
    if ctx.decision is None:
        ctx.suspend(HOSTILE, schema=SCHEMA, expires_in=3600)
    return f"{{ctx.decision['amount']}} by {{ctx.decision['method']}}"
'''


def write(folder: Path) -> Path:
    module = f"console_room_tools_{next(MODULES)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.toml").write_text(AGENT.format(module=module))
    (folder / "script.yaml").write_text(SCRIPT)
    (folder / f"{module}.py").write_text(TOOLS.format(hostile=HOSTILE))
    return folder


def waiting_turn(rt: Runtime, text: str, **fields: object) -> TurnView:
    return asking_room.waiting_turn(rt, text, **fields)


def log_in(client: httpx.Client, store: Store) -> httpx.Client:
    """As the operator, by a one-time link."""
    token = stages.make_link(store, datetime.now(UTC))
    assert client.get("/console/login", params={"link": token}).status_code == 303
    return client


def token_in(page: str) -> str:
    """Of the forms of a page."""
    return unescape(re.findall(r'name="csrf" value="([^"]+)"', page)[0])


@contextmanager
def stream(client: httpx.Client, url: str) -> Iterator[Iterator[str]]:
    """The messages of a page's stream, each as the HTML it holds."""

    def messages(response: httpx.Response) -> Iterator[str]:
        lines: list[str] = []
        for line in response.iter_lines():
            if line:
                lines.append(line)
            elif lines:
                yield "\n".join(part.removeprefix("data: ") for part in lines)
                lines = []

    with client.stream("GET", url) as response:
        assert response.status_code == 200
        yield messages(response)
