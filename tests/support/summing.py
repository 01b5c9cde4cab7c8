"""Worlds whose agent has long conversations summed up, and what can be read of it."""

from __future__ import annotations

from itertools import count
from typing import Any

from chordage.orchestrator.core.agent import CompactionSpec
from chordage.orchestrator.core.compaction import INSTRUCTIONS
from chordage.orchestrator.core.model import Prompt, Said, ToolSays
from support.fakes import Script, asking, spoken
from support.one_turn import change_agent
from support.world import World

FITS = 5  # tokens of a reply that only speaks, with its prompt
ASKS = 9  # ... of one that asks for calls


def is_for_summary(prompt: Prompt) -> bool:
    return prompt.system == INSTRUCTIONS


def summing(world: World, script: Script, *, writer: Script | None = None, **spec: Any) -> None:
    """The agent of this world compacts; what writes its summaries numbers them."""
    numbers = count(1)
    write = writer or (lambda prompt: spoken(f"summary {next(numbers)}"))
    change_agent(world, compaction=CompactionSpec(**spec))
    world.models.script = lambda prompt: write(prompt) if is_for_summary(prompt) else script(prompt)


def rounds(*widths: int, tool: str = "pure", reuse_ids: bool = False) -> Script:
    """A round of each of these widths, then an answer; counted apart from the prompt, which may be shortened."""
    made = count()

    def reply(prompt: Prompt):
        number = next(made)
        if number >= len(widths):
            return spoken("done")
        start = 0 if reuse_ids else 10 * number
        ids = tuple(f"c{start + n}" for n in range(widths[number]))
        return asking(*((tool, {"n": 10 * number + n}) for n in range(widths[number])), ids=ids)

    return reply


def talk(world: World, text: str, **more: Any) -> dict[str, Any]:
    """One turn, until nothing moves. Its row."""
    turn = world.submit(text, **more)
    world.run_dry()
    return world.row("turns", id=turn)


def texts(said: tuple[Said, ...]) -> list[str]:
    """The last line of what each says."""
    return [(one.content if isinstance(one, ToolSays) else one.text).rpartition("\n")[2] for one in said]


def last_prompt(world: World) -> list[str]:
    return texts(world.models.prompts[-1].said)


def summaries(world: World) -> list[dict[str, Any]]:
    return [row["body"] for row in world.rows("journal", kind="HistoryCompacted")]


def failures(world: World) -> list[dict[str, Any]]:
    return [row["body"] for row in world.rows("journal", kind="CompactionFailed")]
