"""The outside world as the engine sees it. Every port can be replaced by a fake without patching."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from chordage.orchestrator.core.agent import AgentSpec, ToolSpec
from chordage.orchestrator.core.agent_versions import AgentVersion
from chordage.orchestrator.core.approvals import Question
from chordage.orchestrator.core.bus import BusCursor, BusEntry
from chordage.orchestrator.core.channels import Outgoing, Polled, Terms
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.model import Prompt, Reply
from chordage.orchestrator.core.phases import Hook, Moment


class Abort(Protocol):
    """Whether the work in flight has to end early.

    `check` raises `Aborted`, `HandedOver` or `OutOfTime`; `wait` sleeps, then checks. `back_off` does the same before
    another attempt, and lets those who ask see it.
    """

    def check(self) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def back_off(self, seconds: float) -> None: ...


class TraceCollector(Protocol):
    def send(self, body: bytes) -> None:
        """Spans, as OTLP writes them in JSON. Raises TryLater, or Undeliverable where these spans are refused."""
        ...


class Models(Protocol):
    def complete(
        self,
        agent: AgentSpec,
        prompt: Prompt,
        *,
        abort: Abort,
        on_delta: Callable[[str], None] | None = None,
        on_reset: Callable[[], None] | None = None,
        on_reasoning: Callable[[str], None] | None = None,
    ) -> Reply:
        """One model call with its retries and fallbacks. Raises ModelFailed, Aborted, HandedOver, OutOfTime.

        `on_delta` gets the text as it comes, and before it `on_reasoning` what the model reasons. `on_reset`: the reply
        starts again, so all of both is void.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskText:
    """A task's file as it is. `version` changes with it."""

    id: str
    path: str
    status: str
    text: str
    version: str


class TaskFile(Protocol):
    """The file of the task that a turn works on. Raises UserError with what to do."""

    def read(self) -> TaskText: ...
    def write(self, *, body: str | None, status: str | None, version: str | None) -> TaskText: ...
    def comment(self, text: str, mark: str) -> TaskText: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultPage:
    """Of a stored result; `total`: characters of the whole."""

    text: str
    total: int


class Executions(Protocol):
    """What a canary of a drill has done."""

    def add(self) -> None:
        """The tool of this call begins."""


class ResultReader(Protocol):
    """The results of the earlier calls of a thread. Raises UserError with what to do."""

    def part(self, call_id: str, offset: int, length: int) -> ResultPage: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOrder:
    """One call of a tool, with what its context offers."""

    call_id: str
    run_id: str
    thread_id: str
    tool: str
    arguments: dict[str, Any]
    idempotency_key: str
    attempt: int = 1
    decision: Any = None  # the answer, where the call asked for a decision
    task: TaskFile | None = None  # of a turn that works on a task of the room
    results: ResultReader | None = None  # of earlier calls of its thread
    executions: Executions | None = None  # of a canary


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOutcome:
    """What became of one call. `code` is None for a success; `content` is what the model will read."""

    content: str
    code: str | None = None
    full: str | None = None  # the whole result, where `content` is only a preview
    question: Question | None = None  # the call waits for a decision
    seconds: float | None = field(default=None, compare=False)  # that its last attempt took, where it was measured

    @property
    def ok(self) -> bool:
        return self.code is None


class Series(Protocol):
    """Calls that are carried out one after the other, beside the thread that began them."""

    def wait(self, seconds: float) -> list[ToolOutcome | None]:
        """Wait until they have ended, but no longer than this; then no further call begins. The outcome of each. None:
        it was not begun, or has not ended, or should be tried again.
        """
        ...

    @property
    def under_way(self) -> int | None:
        """Which call has not ended, after the wait."""
        ...

    def finish(self, *, abort: Abort, on_progress: Callable[[str], None]) -> ToolOutcome | None:
        """Wait for that call. Raises as `Tools.run` does."""
        ...


class Tools(Protocol):
    def specs(self, agent: AgentSpec) -> dict[str, ToolSpec]: ...
    def reader(self) -> ToolSpec:
        """Of the tool that reads stored results; `run` knows it for every agent."""
        ...

    def invalid(self, agent: AgentSpec, tool: str, arguments: dict[str, Any]) -> str | None:
        """Why these arguments do not fit the tool, in words for the model; None when they do."""
        ...

    def run(
        self, agent: AgentSpec, order: CallOrder, *, abort: Abort, on_progress: Callable[[str], None]
    ) -> ToolOutcome:
        """Carry the call out. What the tool raises is an outcome; only Aborted, HandedOver and OutOfTime leave here."""
        ...

    def begin(self, agent: AgentSpec, orders: Sequence[CallOrder]) -> Series:
        """Begin to carry these calls out, each with one attempt."""
        ...

    def reconcile(self, agent: AgentSpec, order: CallOrder) -> ToolOutcome | None:
        """What became of a call whose worker died: its outcome, or None when it is known not to have happened."""
        ...


class AgentPlugins(Protocol):
    """All plugins of one agent."""

    ids: tuple[str, ...]  # in their order

    def listens(self, hook: Hook) -> bool:
        """Whether it is worth putting a context together for it."""
        ...

    def ask(self, hook: Hook, context: Moment) -> list[tuple[str, Any]]:
        """All verdicts (core/verdicts.py), each with the plugin that gave it. Raises PluginFailed, but not for
        `Hook.RUN_END`.
        """
        ...


class OutputForm(Protocol):
    """What an agent's final answer has to be. `name` is what messages call it."""

    name: str
    schema: dict[str, Any]

    def problems(self, value: Any) -> list[str]:
        """What is wrong with this JSON value, each with its place; nothing when it fits."""
        ...


class Agents(Protocol):
    def get(self, name: str | None) -> AgentSpec:
        """The agent of that name (None: the room's default). Raises UnknownAgent, RoomError."""
        ...

    def names(self) -> list[str]: ...
    def version(self, agent: AgentSpec) -> AgentVersion:
        """Of an agent that `get` returned; its tools are loaded for that. Raises UserError."""
        ...

    def digests(self) -> Mapping[str, str]:
        """Of each agent as this process used it last for a turn, by name."""
        ...


class WorkMark(NamedTuple):
    """Of work in flight: the process that has it, and until when that waits before it tries again."""

    holder: str | None = None
    paused_until: datetime | None = None


class Locks(Protocol):
    """One lock for each thread, owned by a run. It saves queries; the database is what decides."""

    def take(self, thread_id: str, owner: str, *, instead_of: str | None = None) -> str | None:
        """None when it is ours now, or Redis does not answer; otherwise the present owner. `instead_of`: the owner
        before, whose run is done.
        """
        ...

    def extend(self, thread_id: str, owner: str) -> None:
        """The run owns its thread, and continues. Not waited for, as `release`."""
        ...

    def release(self, thread_id: str, owner: str, *, more: bool = False) -> None:
        """`more`: sent with what follows at once, `Events.turn_done`."""
        ...

    def once(self, key: str) -> bool:
        """True for the first caller that claims this piece of work within a lease, and for all while Redis is away."""
        ...

    def mark(self, key: str) -> None:
        """As `once`, for work that was sent to no other process."""
        ...

    def forget(self, key: str) -> None: ...
    def holder(self, key: str) -> str | None:
        """The process that has this piece of work in flight, as far as Redis knows."""
        ...

    def pause(self, key: str, until: datetime) -> None:
        """The work waits until then before it tries again. Only for those who ask why; not waited for."""
        ...

    def marks(self, keys: list[str]) -> dict[str, WorkMark]:
        """What is known of those of these pieces of work that are in flight. Nothing while Redis does not answer."""
        ...

    def alive(self, keys: list[str]) -> dict[str, str]:
        """Which of these pieces of work are in flight, and in which process."""
        ...

    def begun(self, keys: list[str]) -> set[str]:
        """Which of these were in flight lately and not given back."""
        ...

    def renew(self, holders: Mapping[str, str]) -> bool:
        """Of each piece of work, the process that has it in flight."""
        ...


class Queues(Protocol):
    """Where wake-ups wait for a worker."""

    def is_empty(self, queue: str) -> bool:
        """False also while Redis does not answer."""
        ...

    def lengths(self, queues: Sequence[str]) -> Mapping[str, int]:
        """How many messages wait in each; empty where nothing can be known of it."""
        ...


class Events(Protocol):
    """Live events for watchers. They may be lost; the journal has the truth.

    A `model.delta` has step, attempt, offset, text, and `so_far`: a function from the end of the piece to all of the
    text up to there, for a watcher that has not seen what came before. So has a `model.reasoning`. Where there was
    reasoning before a text, its deltas have `thought` too: a function that returns all of it.
    """

    def emit(self, run_id: str, kind: str, **data: Any) -> None: ...
    def turn_done(self, turn_id: str) -> None: ...


class Channel(Protocol):
    """A binding of channels.toml."""

    def poll(self, cursor: str | None) -> Polled:
        """What has come in since the cursor. May wait a few seconds. Raises Unavailable."""
        ...

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        """Raises Unavailable where it is worth another try, and Undeliverable where it is not."""
        ...

    def close(self) -> None: ...


class Channels(Protocol):
    def names(self) -> list[str]: ...
    def get(self, name: str) -> Channel:
        """Raises NotFound, and RoomError for a binding that is broken."""
        ...

    def terms(self, name: str) -> Terms:
        """Raises the same."""
        ...

    def faults(self) -> list[RoomError]: ...
    def close(self) -> None: ...


class Bus(Protocol):
    """Streams of facts, written in the order of the journal. Everything here raises Unavailable."""

    def cursor(self) -> BusCursor | None:
        """How far it is; None: it is empty, or has lost what it was."""
        ...

    def begin(self, cursor: BusCursor) -> None:
        """Delete all entries, and begin after this position."""
        ...

    def publish(self, cursor: BusCursor, to: int, entries: Sequence[BusEntry]) -> BusCursor | None:
        """Write what is behind its position, and move it. The cursor it has afterwards: another than asked for, when it
        was not at least where `cursor` says; then nothing was written.
        """
        ...


Clock = Callable[[], datetime]
