"""The turn that every contender carries out, and the room in which Chordage does it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

RESULT_BYTES = 1_000
REMARK = "word " * 80  # 0.4 KB: a message of a history
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnShape:
    """`rounds` rounds of `calls` tools, a model call before each and one after the last."""

    rounds: int = 1
    calls: int = 4
    model_delay: float = 0.0
    tool_delay: float = 0.0

    @property
    def ideal(self) -> float:
        """Seconds a turn would take if only its model and its tools took time, the tools of a round in parallel."""
        return (self.rounds + 1) * self.model_delay + self.rounds * self.tool_delay


SLOW = TurnShape(model_delay=0.2, tool_delay=0.1)


def write_room(folder: Path, shape: TurnShape) -> None:
    """A room with a scripted model and tools that only return 1 KB of JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agents").mkdir(exist_ok=True)
    (folder / "agent.toml").write_text(_agent(WORKER, "work.yaml", tools='["bench_tools"]'))
    (folder / "agents" / f"{TALKER}.toml").write_text(_agent(TALKER, "talk.yaml", tools="[]"))
    (folder / "bench_tools.py").write_text(_TOOLS.format(bytes=RESULT_BYTES, delay=shape.tool_delay))
    (folder / "talk.yaml").write_text(json.dumps([{"text": REMARK}]))  # JSON is YAML
    write_script(folder, shape)


def write_script(folder: Path, shape: TurnShape) -> None:
    """Running workers follow the new script from their next model call on."""
    latency = {"latency": shape.model_delay} if shape.model_delay else {}
    calls = [{"name": "look_up", "arguments": {"key": f"key {number}"}} for number in range(shape.calls)]
    script: list[dict[str, object]] = [{"tool_calls": calls, **latency} for _ in range(shape.rounds)]
    (folder / "work.yaml").write_text(json.dumps([*script, {"text": "Here it is.", **latency}]))


def _agent(name: str, script: str, *, tools: str) -> str:
    return f"""name = "{name}"
model = "scripted:{script}"
instructions = "You look things up."
tools = {tools}

[limits]
max_rounds = 1000
"""
