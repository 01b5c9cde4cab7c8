"""Replies and forms for tests of structured output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.model import AssistantSays, Prompt, Reply, UserSays
from chordage.orchestrator.core.transcript import is_note
from chordage.orchestrator.gateways.output_forms import SchemaForm
from support.fakes import spoken
from support.world import World

SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
GOOD, BAD, PROSE = '{"n": 7}', '{"n": "seven"}', "Seven, I think."
WRONG = "$.n: 'seven' is not of type 'integer'"


class Saying:
    """A form whose judgement is a function of the test's."""

    def __init__(self, problems: Callable[[Any], list[str]]) -> None:
        self.name = "the form"
        self.schema: dict[str, Any] = {"type": "object"}
        self.problems = problems


def demand(world: World, form: Any = None) -> None:
    """All agents of this world owe an answer that fits."""
    wanted = form or SchemaForm(SCHEMA)

    def outputs(_agent: AgentSpec) -> Any:
        return wanted

    object.__setattr__(world.runtime, "outputs", outputs)


def saying(*replies: str | Reply) -> Callable[[Prompt], Reply]:
    """These, one after the other behind each message; a pure function of the prompt."""

    def reply(prompt: Prompt) -> Reply:
        said = replies[_since_the_message(prompt)]
        return spoken(said) if isinstance(said, str) else said

    return reply


def _since_the_message(prompt: Prompt) -> int:
    count = 0
    for said in prompt.said:
        if isinstance(said, UserSays) and not is_note(said):
            count = 0
        count += isinstance(said, AssistantSays)
    return count


def last_end(world: World) -> dict[str, Any]:
    return dict(world.rows("journal", kind="RunFinished")[-1]["body"])  # type: ignore[call-overload]


def refusals(world: World) -> list[str]:
    return [row["body"]["why"] for row in world.rows("journal", kind="OutputRefused")]  # type: ignore[index]
