"""A consumer that drives a stepped turn of a world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator import views
from chordage.orchestrator.core.model import AssistantSays, Prompt, Reply, Said, ToolSays, UserSays
from chordage.orchestrator.core.records import Checkpoint, Entry
from chordage.orchestrator.core.stepping import PENDING, Control, StepTerms
from chordage.orchestrator.core.transcript import build
from chordage.orchestrator.store import journal
from chordage.orchestrator.store.stepped import load_view
from chordage.orchestrator.views.stepped import SteppedView
from support.fakes import asking, spoken
from support.world import World

USER = {"role": "user", "text": "U"}


def in_turn(*replies: Reply) -> Callable[[Prompt], Reply]:
    """These replies, one after the other; the last of them for ever."""
    left = list(replies)
    return lambda _prompt: left.pop(0) if len(left) > 1 else left[0]


def asks(*ids: str, tool: str = "pure") -> Reply:
    return asking(*((tool, {"n": place}) for place, _ in enumerate(ids)), ids=ids)


def text(words: str = "R") -> Reply:
    return spoken(words)


def history_of(world: World, turn_id: str) -> tuple[Said, ...]:
    """The history of a stepped turn's thread without the held reply, and behind it what is pending."""
    with world.store.read() as tx:
        seen = load_view(tx, turn_id)
        past = journal.history(tx, seen.turn.thread_id)
    entries = list(past.entries)
    if seen.run is not None and seen.row.given:
        pending = {"messages": seen.row.given, "replaces": seen.row.replaces}
        entries.append(
            Entry(
                id=PENDING, thread_id=seen.turn.thread_id, run_id=seen.run.id, step=-2, kind=Checkpoint.CLIENT_MESSAGES,
                body=pending,
            )
        )  # fmt: skip
    return build(entries, past.calls)


def in_short(said: Sequence[Said]) -> list[str]:
    """`hi`, `R(a b)`, `a=pure0`, `U`."""
    return [_short(one) for one in said]


def _short(one: Said) -> str:
    match one:
        case UserSays(text=words):
            return words
        case AssistantSays(text=words, asks=()):
            return words
        case AssistantSays(asks=asked):
            return f"R({' '.join(ask.id for ask in asked)})"
        case ToolSays(ask_id=ask_id, content=content):
            return f"{ask_id}={content}"


@dataclass
class Consumer:
    world: World
    turn: str

    def do(self, verb: str, **args: Any) -> SteppedView:
        """A verb, and everything that follows from it."""
        self.world.step(self.turn, verb, **args)
        self.world.run_dry()
        return self.look()

    def next(self) -> SteppedView:
        return self.do("next")

    def push(self, *messages: dict[str, Any]) -> SteppedView:
        return self.do("messages", messages=list(messages))

    def look(self) -> SteppedView:
        return views.stepped(self.world.store, self.turn)

    @property
    def link(self) -> dict[str, Any]:
        reply = self.look().reply
        assert reply is not None
        return {"role": "assistant", "reply": reply.id}

    @property
    def asked(self) -> list[list[str]]:
        """What the model was asked, each time."""
        return [in_short(prompt.said) for prompt in self.world.models.prompts]

    @property
    def runs(self) -> int:
        """How many tool executions there were."""
        return self.world.tools.ran.total()


def consume(world: World, *replies: Reply, **terms: Any) -> Consumer:
    """A stepped turn that was submitted and is ready."""
    if replies:
        world.models.script = in_turn(*replies)
    turn = world.submit(control=Control.STEP, step=StepTerms(**terms))
    world.run_dry()
    return Consumer(world, turn)
