"""Stand-ins for models, tools and agents: what they are asked is kept, what they answer is scripted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from chordage.orchestrator.core.agent import AgentSpec, Effect, Placement, ToolSpec
from chordage.orchestrator.core.agent_versions import AgentVersion, plain
from chordage.orchestrator.core.approvals import Question
from chordage.orchestrator.core.errors import BrokenAgent, UnknownAgent
from chordage.orchestrator.core.model import (
    AssistantSays,
    Prompt,
    Reply,
    StopReason,
    ToolAsk,
    ToolSays,
    Usage,
    UserSays,
)
from chordage.orchestrator.core.transcript import is_note
from chordage.orchestrator.gateways.ports import CallOrder, ToolOutcome


def spoken(text: str) -> Reply:
    return Reply(text=text, asks=(), stop=StopReason.END, model="fake", usage=Usage(input_tokens=3, output_tokens=2))


def asking(*tools: tuple[str, dict[str, Any]], ids: tuple[str, ...] = ()) -> Reply:
    asks = tuple(
        ToolAsk(id=ids[place] if ids else f"ask{place}", name=name, arguments=arguments)
        for place, (name, arguments) in enumerate(tools)
    )
    usage = Usage(input_tokens=5, output_tokens=4)
    return Reply(text="", asks=asks, stop=StopReason.TOOL_USE, model="fake", usage=usage)


Script = Callable[[Prompt], Reply]


def rounds_of(width: int, rounds: int = 1, tool: str = "pure") -> Script:
    """Ask for `width` tools in each of `rounds` rounds, then answer with what came back. A pure function of the
    prompt.
    """

    def reply(prompt: Prompt) -> Reply:
        last_user = max(
            place for place, said in enumerate(prompt.said) if isinstance(said, UserSays) and not is_note(said)
        )
        since = prompt.said[last_user + 1 :]
        done = sum(isinstance(said, AssistantSays) for said in since)
        if done < rounds:
            return asking(*((tool, {"n": n}) for n in range(width)), ids=tuple(f"r{done}c{n}" for n in range(width)))
        results = " ".join(said.content for said in since if isinstance(said, ToolSays))
        return spoken(f"done: {prompt.said[last_user].text} [{results}]")

    return reply


@dataclass
class FakeModels:
    script: Script = field(default_factory=lambda: rounds_of(2))
    prompts: list[Prompt] = field(default_factory=list)
    agents: list[AgentSpec] = field(default_factory=list)  # for each of them
    before_reply: Callable[[Prompt], None] = lambda prompt: None
    thinks: Callable[[Any], None] = lambda on_reasoning: None  # what a watcher sees before the text
    streams: Callable[[Any, Any], None] = lambda on_delta, on_reset: None  # what a watcher sees of the reply

    def complete(
        self,
        agent: AgentSpec,
        prompt: Prompt,
        *,
        abort: Any,
        on_delta: Any = None,
        on_reset: Any = None,
        on_reasoning: Any = None,
    ) -> Reply:
        self.prompts.append(prompt)
        self.agents.append(agent)
        self.thinks(on_reasoning)
        self.streams(on_delta, on_reset)
        self.before_reply(prompt)
        abort.check()
        return self.script(prompt)


EFFECTS = {effect.value: effect for effect in Effect}


@dataclass
class FakeTools:
    """One tool for each effect, by its name; each call is counted by its idempotency key."""

    ran: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    before: Callable[[CallOrder], None] = lambda order: None
    known: dict[str, ToolOutcome] = field(default_factory=dict)
    asks: Callable[[CallOrder], Question | None] = lambda order: None
    orders: list[CallOrder] = field(default_factory=list)
    says: Callable[[CallOrder], str] = lambda order: f"{order.tool}{order.arguments.get('n', '')}"
    overstays: Callable[[CallOrder], bool] = lambda order: False  # of a call that runs where its run is held
    placement: Placement = Placement.AUTO  # by the word of their author
    outrun: frozenset[str] = frozenset()  # statuses that the call may have got since its series was begun
    takes: Callable[[CallOrder], float | None] = lambda order: None  # seconds, as they are measured

    def specs(self, agent: AgentSpec) -> dict[str, ToolSpec]:
        return {
            name: ToolSpec(
                name=name, description=name, schema={"type": "object"}, effect=effect, placement=self.placement
            )
            for name, effect in EFFECTS.items()
        }

    def reader(self) -> ToolSpec:
        return ToolSpec(name="read_result", description="", schema={"type": "object"}, effect=Effect.PURE)

    def invalid(self, agent: AgentSpec, tool: str, arguments: dict[str, Any]) -> str | None:
        return "n: must be a number" if not isinstance(arguments.get("n", 0), int) else None

    def run(self, agent: AgentSpec, order: CallOrder, *, abort: Any, on_progress: Any) -> ToolOutcome:
        self.ran[order.idempotency_key] += 1
        self.orders.append(order)
        self.before(order)
        abort.check()
        if (question := self.asks(order)) is not None:
            return ToolOutcome(content=question.prompt, question=question)
        self.finished[order.idempotency_key] += 1
        return ToolOutcome(content=self.says(order), seconds=self.takes(order))

    def begin(self, agent: AgentSpec, orders: Sequence[CallOrder]) -> FakeSeries:
        return FakeSeries(tools=self, agent=agent, orders=orders)

    def reconcile(self, agent: AgentSpec, order: CallOrder) -> ToolOutcome | None:
        return self.known.get(order.idempotency_key)


class Unstoppable:
    """The abort of calls that are waited for only briefly."""

    def check(self) -> None: ...


@dataclass
class FakeSeries:
    """Calls are carried out when they are waited for, up to one that overstays."""

    tools: FakeTools
    agent: AgentSpec
    orders: Sequence[CallOrder]
    under_way: int | None = None

    def wait(self, seconds: float) -> list[ToolOutcome | None]:
        outcomes: list[ToolOutcome | None] = [None] * len(self.orders)
        for number, order in enumerate(self.orders):
            if self.tools.overstays(order):
                self.under_way = number
                break
            with self._outrun("cancelled"):
                outcomes[number] = self.tools.run(self.agent, order, abort=Unstoppable(), on_progress=None)
        return outcomes

    def finish(self, *, abort: Any, on_progress: Any) -> ToolOutcome | None:
        with self._outrun("cancelled", "succeeded", "failed", "suspended"):
            return self.tools.run(self.agent, self.orders[self.under_way or 0], abort=abort, on_progress=on_progress)

    @contextmanager
    def _outrun(self, *statuses: str) -> Iterator[None]:
        """The series was begun before: what others do meanwhile does not stop it, and its results are refused."""
        self.tools.outrun = frozenset(statuses)
        try:
            yield
        finally:
            self.tools.outrun = frozenset()


@dataclass
class FakeAgents:
    agents: dict[str, AgentSpec] = field(default_factory=lambda: {"ada": AgentSpec(name="ada", model="fake")})
    broken: set[str] = field(default_factory=set)  # whose files are being edited
    used: dict[str, str] = field(default_factory=dict)  # the digest of each when it was read last

    def get(self, name: str | None) -> AgentSpec:
        wanted = name or next(iter(self.agents))
        if wanted in self.broken:
            raise BrokenAgent(f"{wanted}.toml:1: this is not TOML")
        if wanted not in self.agents:
            raise UnknownAgent(f"no agent {wanted!r}; the room has: {', '.join(self.agents)}")
        self.used[wanted] = self.agents[wanted].digest
        return self.agents[wanted]

    def names(self) -> list[str]:
        return list(self.agents)

    def version(self, agent: AgentSpec) -> AgentVersion:
        return AgentVersion(digest=agent.digest, agent=agent.name, definition={"agent": plain(agent)})

    def digests(self) -> dict[str, str]:
        return {name: digest for name, digest in self.used.items() if digest}
