"""A room for the bench: a scripted model without latency, and tools that do nothing but return 1 KB of JSON."""

from __future__ import annotations

import json
from pathlib import Path

from chordage.workers.bench.shape import REMARK, RESULT_BYTES, Shape

WORKER = "bench"  # the agent that calls tools
TALKER = "talker"  # the agent that answers at once: it makes histories

_TOOLS = '''"""Tools that cost nothing."""

from __future__ import annotations

import json
import time

from chordage import tool

RESULT = json.dumps({{"filling": "x" * {bytes}}})


@tool(effect="pure")
def look_up(key: str) -> str:
    """Look something up."""
    if {delay}:
        time.sleep({delay})
    return RESULT
'''


def write_room(folder: Path, shape: Shape) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agents").mkdir(exist_ok=True)
    (folder / "agent.toml").write_text(_agent(WORKER, "work.yaml", tools='["bench_tools"]'))
    (folder / "agents" / f"{TALKER}.toml").write_text(_agent(TALKER, "talk.yaml", tools="[]"))
    (folder / "bench_tools.py").write_text(_TOOLS.format(bytes=RESULT_BYTES, delay=shape.tool_delay))
    (folder / "talk.yaml").write_text(json.dumps([{"text": REMARK}]))  # JSON is YAML
    write_script(folder, shape)


def write_script(folder: Path, shape: Shape) -> None:
    """Workers that run already follow it from their next model call on."""
    (folder / "work.yaml").write_text(json.dumps(_script(shape)))


def _agent(name: str, script: str, *, tools: str) -> str:
    return f"""name = "{name}"
model = "scripted:{script}"
instructions = "You look things up."
tools = {tools}

[limits]
max_rounds = 1000
"""


def _script(shape: Shape) -> list[dict[str, object]]:
    asks = [{"name": "look_up", "arguments": {"key": f"key {number}"}} for number in range(shape.calls)]
    latency = {"latency": shape.model_delay} if shape.model_delay else {}
    return [*({"tool_calls": asks, **latency} for _ in range(shape.rounds)), {"text": "Here it is.", **latency}]
