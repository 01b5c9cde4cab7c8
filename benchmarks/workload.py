"""The turn that is measured, and the room in which Chordage carries it out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from chordage.orchestrator.gateways.room.agent_table import AgentTable

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


@tool(effect="{effect}")
def look_up(key: str) -> str:
    """Look something up."""
    if {delay}:
        time.sleep({delay})
    return RESULT
'''
_PLUGIN = '''"""A plugin that is called at the end of each run and tells Redis, as one that counts or bills would."""

from __future__ import annotations

import os

from redis import Redis

from chordage.plugins import Plugin

REDIS = Redis.from_url(os.environ["CHORDAGE_REDIS_URL"])


class Ends(Plugin):
    id = "ends"

    def run_end(self, context, /):
        REDIS.incr("bench:ends")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RoomOptions:
    """What the scenarios change."""

    placement: str | None = None  # None: the agent's file does not say
    effect: str = "pure"
    plugin: bool = False


AS_IS = RoomOptions()


def write_room(folder: Path, shape: TurnShape, options: RoomOptions = AS_IS) -> None:
    """A room with a scripted model and tools that only return 1 KB of JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agents").mkdir(exist_ok=True)
    (folder / "agent.toml").write_text(_agent(WORKER, "work.yaml", '["bench_tools"]', options))
    (folder / "agents" / f"{TALKER}.toml").write_text(_agent(TALKER, "talk.yaml", "[]", AS_IS))
    tools = _TOOLS.format(bytes=RESULT_BYTES, delay=shape.tool_delay, effect=options.effect)
    (folder / "bench_tools.py").write_text(tools)
    (folder / "bench_plugin.py").write_text(_PLUGIN)
    (folder / "talk.yaml").write_text(json.dumps([{"text": REMARK}]))  # JSON is YAML
    write_script(folder, shape)


def write_script(folder: Path, shape: TurnShape) -> None:
    """Running workers follow the new script from their next model call on."""
    latency = {"latency": shape.model_delay} if shape.model_delay else {}
    calls = [{"name": "look_up", "arguments": {"key": f"key {number}"}} for number in range(shape.calls)]
    script: list[dict[str, object]] = [{"tool_calls": calls, **latency} for _ in range(shape.rounds)]
    (folder / "work.yaml").write_text(json.dumps([*script, {"text": REMARK, **latency}]))


def knows_placement() -> bool:
    """Whether an agent's file has the key: versions are compared that do not know it."""
    return "placement" in AgentTable.model_fields


def _agent(name: str, script: str, tools: str, options: RoomOptions) -> str:
    placement = f'placement = "{options.placement}"\n' if options.placement else ""
    plugins = '\n[[plugins]]\nuse = "bench_plugin:Ends"\n' if options.plugin else ""
    return f"""name = "{name}"
model = "scripted:{script}"
instructions = "You look things up."
tools = {tools}
{placement}
[limits]
max_rounds = 1000
{plugins}"""
