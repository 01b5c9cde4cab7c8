"""Agents that ask each other: ada asks bob, bob asks cleo, and so on; and the script of their model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec, SubAgent
from chordage.orchestrator.core.model import Prompt, Reply, ToolSays, UserSays
from chordage.orchestrator.core.transcript import is_note
from support.fakes import asking, spoken
from support.world import World

NAMES = ("ada", "bob", "cleo", "dora")


def settle_in(world: World, *names: str, **settings: Any) -> None:
    """A line of agents, each of which may ask the next; and every one of them itself."""
    line = names or NAMES
    below = {name: (following, name) for name, following in zip(line, [*line[1:], line[0]], strict=True)}
    world.agents.agents = {
        name: AgentSpec(name=name, model="fake", instructions=name, agents=_subs(below[name]), **settings)
        for name in line
    }


def _subs(names: Sequence[str]) -> tuple[SubAgent, ...]:
    return tuple(SubAgent(agent=name) for name in dict.fromkeys(names))


def change(world: World, name: str, **settings: Any) -> None:
    world.agents.agents[name] = replace(world.agents.agents[name], **settings)


@dataclass
class Lines:
    """What each agent asks for in its rounds; then it says what came back. A pure function of the prompt."""

    of: dict[str, list[list[tuple[str, dict[str, Any]]]]] = field(default_factory=dict)

    def __call__(self, prompt: Prompt) -> Reply:
        last = max(place for place, one in enumerate(prompt.said) if isinstance(one, UserSays) and not is_note(one))
        since = prompt.said[last + 1 :]
        rounds = self.of.get(prompt.system, [])
        done = sum(not isinstance(one, ToolSays | UserSays) for one in since)
        if done < len(rounds):
            ids = tuple(f"r{done}c{n}" for n in range(len(rounds[done])))
            return asking(*rounds[done], ids=ids)
        results = " ".join(one.content for one in since if isinstance(one, ToolSays))
        return spoken(f"{prompt.system}[{results}]")


def ask(name: str, message: str = "please") -> tuple[str, dict[str, Any]]:
    return f"ask_{name}", {"message": message}


def by_agent(world: World, table: str = "turns") -> dict[str, dict[str, Any]]:
    """The one row of each agent."""
    return {str(row["agent"]): row for row in world.rows(table)}
