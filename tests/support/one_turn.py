"""One turn of a world, from its message until nothing moves any more, and what can be read of it then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chordage.orchestrator.core.model import ToolSays
from chordage.orchestrator.plugins.base import Plugin
from support.fakes import Script, rounds_of
from support.hooks import install
from support.world import World


def change_agent(world: World, **changed: Any) -> None:
    world.agents.agents["ada"] = replace(world.agents.agents["ada"], **changed)


def play(world: World, *plugins: Plugin, script: Script | None = None, text: str = "hi") -> dict[str, Any]:
    """The turn's row. Without plugins those of the turn before stay; without a script two tools are asked for."""
    if plugins:
        install(world, *plugins)
    world.models.script = script or rounds_of(2)
    turn = world.submit(text)
    world.run_dry()
    return world.row("turns", id=turn)


def results(world: World) -> list[ToolSays]:
    """The results of calls in the last prompt."""
    return [said for said in world.models.prompts[-1].said if isinstance(said, ToolSays)]


def result_texts(world: World) -> list[str]:
    return [result.content for result in results(world)]


def column(world: World, name: str) -> list[Any]:
    """Of every call."""
    return [call[name] for call in world.rows("calls")]


def statuses(world: World) -> list[str]:
    return column(world, "status")


def kinds(world: World) -> list[str]:
    """The journal, from its beginning."""
    return [entry["kind"] for entry in world.rows("journal")]
