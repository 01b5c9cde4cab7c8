"""A fleet in one thread, for tests of agents and tools: real stages and SQL, a scripted model, and time that is moved.

The database is a SQLite file in a temporary folder that is never synced to disk. Messages are a list, Redis is in
memory, tools run in the thread of the test, and waits move the clock. So a run depends on its schedule alone: the same
schedule leads to the same run, down to the ids.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, is_dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Self, TypeAlias, get_args, get_origin, get_type_hints

import structlog

from chordage.orchestrator import views
from chordage.orchestrator.core.agent import AgentSpec, Effect, OutputUse, Placement, PluginUse, SubAgent, ToolSpec
from chordage.orchestrator.core.agent_versions import AgentVersion, plain
from chordage.orchestrator.core.approvals import Action, DecisionRequest, Why
from chordage.orchestrator.core.errors import UnknownAgent
from chordage.orchestrator.core.intents import CallHere, CallModel, CallTool, Dispatch
from chordage.orchestrator.core.leases import LeaseRules
from chordage.orchestrator.core.model import Prompt, Reply, Said
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.core.text import one_of
from chordage.orchestrator.core.transcript import build
from chordage.orchestrator.gateways.models.catalog import ModelCatalog
from chordage.orchestrator.gateways.models.providers import SCRIPTED, TableProviders
from chordage.orchestrator.gateways.models.wire import Model
from chordage.orchestrator.gateways.output_forms import ModelForm, SchemaForm
from chordage.orchestrator.gateways.ports import Abort, CallOrder, OutputForm, Series, ToolOutcome
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.gateways.tools.attempt import Around, NamedAround, nothing_around
from chordage.orchestrator.gateways.tools.context import Context, Suspend
from chordage.orchestrator.gateways.tools.declare import Tool, declared_on
from chordage.orchestrator.gateways.tools.toolbox import ToolBox
from chordage.orchestrator.plugins.loading import PluginSets
from chordage.orchestrator.store import journal, schema_version
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.system.user_code import SideThread, SideThreads, words_of
from chordage.orchestrator.views.approvals import OpenQuestion
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.runs import ToolRound
from chordage.orchestrator.views.turns import TurnView
from chordage.testing.engine import Died, Header, MemoryEngine, Pending
from chordage.testing.model import ScriptedModel
from chordage.testing.schedules import PLAIN, FaultKind, FaultPlaces, FaultSchedule

RAM = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
LEASE = 40.0  # seconds that pass before rescue looks again: more than a lease
STALL = 120.0
PATIENCE = 200  # sweeps until a world must have come to rest
NEVER_POISON = 1_000_000  # a schedule may kill at one step as often as it likes


Answers: TypeAlias = Callable[[CallOrder, Mapping[str, Any]], ToolOutcome | None]
"""What a call is answered, from its order and its row. None: nothing is known of it."""


class WorldError(AssertionError):
    """The world cannot do what the test asks of it. The text says what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedEffect:
    """What a tool did to the outside. It outlives the process that did it."""

    name: str
    details: Mapping[str, Any]
    key: str | None
    tool: str | None  # None: no tool was running
    call_id: str | None
    execution: int | None  # the number of the tool's execution in this run of the world

    def __str__(self) -> str:
        return f"{self.name} {_arguments(self.details)}".rstrip()


class WorldDatabase:
    """A migrated database that is emptied for each world. Migrating and opening take longer than most runs."""

    def __init__(self) -> None:
        parent = RAM if os.access(RAM, os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="chordage-testing-", dir=parent))
        self._file = self._folder / "world.db"
        self.store = Store(f"sqlite:///{self._file}", pool_size=1)
        schema_version.upgrade(self.store)
        self.store.close()
        self._template = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(self._file)) as migrated:
            migrated.backup(self._template)

    def empty(self) -> None:
        with closing(sqlite3.connect(self._file)) as target:
            self._template.backup(target)

    def close(self) -> None:
        self.store.close()
        self._template.close()
        shutil.rmtree(self._folder, ignore_errors=True)


_FREE: list[WorldDatabase] = []


def _database() -> WorldDatabase:
    if _FREE:
        database = _FREE.pop()
        database.empty()
        return database
    database = WorldDatabase()
    atexit.register(database.close)
    return database


@dataclass(frozen=True, kw_only=True, slots=True)
class _WorldAgent:
    """An agent that a test defines."""

    spec: AgentSpec
    tools: Mapping[str, Tool]
    model: ScriptedModel | None
    output: OutputForm | None


class World:
    """`room`: the folder of a room whose agents are tested. `model`: what speaks for every model that has no other, and
    `models` for single ones, by their names in agent.toml. `schedule`: what goes wrong.
    """

    def __init__(
        self,
        *,
        room: Path | str | None = None,
        model: ScriptedModel | None = None,
        models: Mapping[str, ScriptedModel] | None = None,
        around_tools: str | None = None,
        schedule: FaultSchedule = PLAIN,
    ) -> None:
        self.effects: list[RecordedEffect] = []
        self.steps: list[str] = []  # what happened, for people
        self.places = FaultPlaces()
        self.schedule = schedule
        self.when_unknown: Callable[[OpenQuestion], Mapping[str, Any]] = lambda _question: {"answer": "failed"}
        self.speaks: Model | None = None  # for every model
        self.answers: Answers | None = None  # instead of the tools
        self._room = None if room is None else _room(Path(room).resolve())
        self._agents: dict[str, _WorldAgent] = {}
        self._model = model
        self.models = dict(models or {})
        self._executing: _Execution | None = None
        self._executions: list[_Execution] = []
        self._orders: dict[str, CallOrder] = {}  # by call
        self._tools: dict[str, str] = {}  # their names, by call
        self._reconciles = False
        self._kills = schedule.kills()  # those at commits that have not happened
        self._died_here = False  # at a place that has said so
        self._around_tools: Around = NamedAround(around_tools) if around_tools else nothing_around
        self._database = _database()
        toolbox = ToolBox(self._tools_of, around=self._around, sides=_SameThread(self))
        self.engine = MemoryEngine(
            store=self._database.store, models=_WorldModels(self), tools=_WorldTools(self, toolbox), agents=self,
            options={
                "plugin_sets": PluginSets(), "outputs": self._output_of, "prices": self._prices,
                "leases": LeaseRules(poison_after=NEVER_POISON),
            },
            before_commit=self._note_transaction,
        )  # fmt: skip
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.engine.detach()
            _FREE.append(self._database)

    # Agents

    def agent(
        self,
        name: str = "agent",
        *,
        model: ScriptedModel | Sequence[Any] | Callable[..., Any] | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        agents: Sequence[str] = (),
        plugins: Sequence[str | PluginUse] = (),
        output: Any = None,
        **options: Any,
    ) -> ScriptedModel:
        """Define an agent; the first is the default. `tools`: functions with @tool. `output`: a pydantic model or a
        JSON Schema. `options`: further fields of an agent, such as `strategy`, `instructions`, `limits` or `placement`.
        Returns its model.
        """
        speaker = model if isinstance(model, ScriptedModel) or model is None else ScriptedModel(model, name=name)
        speaker = speaker or self._model
        if speaker is None:
            raise WorldError(f"agent {name!r} has no model: give model=ScriptedModel([...]) or a list of replies")
        form = None if output is None else SchemaForm(output) if isinstance(output, dict) else ModelForm(output)
        try:
            options = _as_declared(AgentSpec, options)
            spec = AgentSpec(
                name=name, model=f"world:{name}", tools=tuple(f"world:{tool.__name__}" for tool in tools),
                agents=tuple(SubAgent(agent=other) for other in agents),
                plugins=tuple(use if isinstance(use, PluginUse) else PluginUse(use=use) for use in plugins),
                output=None if form is None else OutputUse(schema=form.schema), **options,
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise WorldError(f"agent {name!r}: {error}") from error
        self._agents[name] = _WorldAgent(spec=spec, tools=_declared(name, tools), model=speaker, output=form)
        return speaker

    def get(self, name: str | None) -> AgentSpec:
        """Implements `ports.Agents`."""
        if name is None and self._agents:
            name = next(iter(self._agents))
        if name in self._agents:
            spec = self._agents[name].spec
        elif self._room is not None:
            spec = self._room.get(name)
        else:
            known = ", ".join(self._agents) or "none"
            raise UnknownAgent(f"the world has no agent {name!r}; it has: {known}. Define it with world.agent(...)")
        if self.answers is not None:  # the row of a call has to be there before its answer
            return replace(spec, placements=dict.fromkeys(self._tools_of(spec), Placement.SPREAD))
        return replace(spec, placement=Placement.HERE, placements={}) if self.schedule.here else spec

    def names(self) -> list[str]:
        return [*self._agents, *(self._room.names() if self._room is not None else ())]

    def version(self, agent: AgentSpec) -> AgentVersion:
        return AgentVersion(digest=agent.digest, agent=agent.name, definition={"agent": plain(agent)})

    def digests(self) -> Mapping[str, str]:
        return {}

    def model_for(self, name: str) -> Model | None:
        """What speaks for the model of this name. None: the room's own script."""
        if self.speaks is not None:
            return self.speaks
        if name in self.models:
            return self.models[name]
        defined = self._agents.get(name.partition(":")[2]) if name.startswith("world:") else None
        if defined is not None:
            return defined.model
        if self._model is not None or name.startswith(f"{SCRIPTED}:"):
            return self._model
        raise WorldError(
            f"a world reaches no provider, and nothing speaks for the model {name!r}: give "
            f"World(model=ScriptedModel(...)), or World(models={{{name!r}: ScriptedModel(...)}})"
        )

    def _tools_of(self, agent: AgentSpec) -> Mapping[str, Tool]:
        if agent.name in self._agents:
            return self._agents[agent.name].tools
        assert self._room is not None
        return self._room.tools_of(agent)

    def _output_of(self, agent: AgentSpec) -> OutputForm | None:
        if agent.name in self._agents:
            return self._agents[agent.name].output
        return None if self._room is None else self._room.output_of(agent)

    def _prices(self) -> Mapping[str, Any]:
        return {} if self._room is None else self._room.prices()

    # What comes in

    def submit(self, text: str, *, thread: str | None = "thread", agent: str | None = None, **fields: Any) -> str:
        """A message. `fields`: those of a turn, such as `group`, `when_busy`, `not_before`, `dedupe_key` or `meta`.
        Returns the id of its turn.
        """
        turn_id = self.engine.submit(text, thread=thread, agent=agent, **fields)
        self.note("message", f"{text[:80]!r} on thread {thread!r}: turn {turn_id}")
        return turn_id

    def decide(
        self,
        question: OpenQuestion | str,
        answer: Any = True,
        *,
        edited: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> None:
        """Answer a question of the inbox. `edited`: other arguments for the call."""
        self._decide(question, Action.RESUME, payload=answer, edited_args=edited, reason=reason)

    def deny(self, question: OpenQuestion | str, reason: str | None = None) -> None:
        self._decide(question, Action.CANCEL, reason=reason)

    def _decide(self, question: OpenQuestion | str, action: Action, **fields: Any) -> None:
        target = question if isinstance(question, str) else question.id
        self.engine.decide(DecisionRequest(target=target, action=action, **fields))
        self.note("decision", f"{action.verdict} {fields.get('payload', '')!r}".removesuffix(" ''"))

    # What happens

    def run(self) -> None:
        """Carry out what there is to do, with all that the schedule wants to go wrong, and recover: until every turn is
        done, or waits for a person, a consumer or a time.
        """
        with _quiet():
            for _ in range(PATIENCE):
                self._deliver_all()
                if self._answer_unknown():
                    continue
                if not self._is_stuck():
                    return
                self._pass_lease()
        raise WorldError("the world does not come to rest. Its last steps:\n" + "\n".join(self.steps[-12:]))

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let time pass, and carry out what is due then."""
        span = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        if span <= 0:
            raise WorldError("advance: give days, hours, minutes or seconds, more than 0 together")
        self.note("time", f"{span:g} s pass")
        with _quiet():
            self.engine.clock.pass_by(span)
            while self._as_process(self.engine.sweep):
                pass  # the next process sweeps
        self.run()

    def effect(self, name: str, *, key: str | None = None, **details: Any) -> bool:
        """To be called by what replaces the outside, at the moment at which something takes effect there. `key`: with
        this key it takes effect once. False: it had already.
        """
        self._only_the_living()
        now = self._executing
        if key is not None and any((known.name, known.key) == (name, key) for known in self.effects):
            self.note("effect", f"{name} {_arguments(details)}: its key is known, nothing changes")
            return False
        tool = (None, None, None) if now is None else (now.order.tool, now.order.call_id, now.number)
        self.effects.append(
            RecordedEffect(name=name, details=details, key=key, tool=tool[0], call_id=tool[1], execution=tool[2])
        )
        self.note("effect", str(self.effects[-1]))
        self.places.effects += now is not None
        if now is not None and self.schedule.has(FaultKind.KILL_AFTER_EFFECT, self.places.effects):
            raise self._kill(f"after effect {self.places.effects}, inside {now.order.tool}")
        return True

    def note(self, kind: str, text: str) -> None:
        """Add a line to the steps."""
        self.steps.append(f"{len(self.steps) + 1:3}  {kind:<9} {text}")

    def _deliver_all(self) -> None:
        while self.engine.pending:
            self._deliver_next()

    def _deliver_next(self) -> None:
        pending, places = self.engine.pending, self.places
        places.deliveries += 1
        number = places.deliveries
        if len(pending) > 1:
            places.may_be_late.add(number)
        if self.schedule.has(FaultKind.LOSE_REDIS, number):
            self.note("REDIS", f"loses everything, with {len(pending)} messages")
            pending.clear()
            self.engine.locks.wipe()
            return
        late = self.schedule.has(FaultKind.DELAY, number) and len(pending) > 1
        if late:
            self.note("LATE", f"delivery {number}: {self._named(pending[0])}")
        message = pending.pop(1 if late else 0)
        if self.schedule.has(FaultKind.DROP, number):
            self.note("LOST", f"delivery {number}: {self._named(message)}")
            return
        if self.schedule.has(FaultKind.DOUBLE, number):
            self.note("DOUBLED", f"delivery {number}: {self._named(message)}")
            pending.append(message)
        self.note("worker", self._named(message))
        self._as_process(lambda: self.engine.deliver(message))

    def _as_process(self, work: Callable[[], object]) -> bool:
        """Whether it died. What it had begun is lost then, and what it holds in Redis runs out."""
        engine, before = self.engine, self.engine.commits
        due = [kill for kill in self._kills if kill[0] > before]
        engine.die_at, engine.die_before = due[0] if due else (None, False)
        try:
            work()
        except Died:
            self._executing = None
            if not self._died_here:
                self._kills.remove(due[0])  # a single statement is a commit without a moment before it
                self.note("KILLED", f"{'after' if engine.commits >= due[0][0] else 'before'} commit {due[0][0]}")
            self._died_here = False
            engine.forget_the_dead()
            return True
        finally:
            engine.die_at = None
            self.places.commits.update(range(before + 1, engine.commits + 1))
        return False

    def _note_transaction(self, _connection: Any) -> None:
        self.places.transactions.add(self.engine.commits + 1)

    def _kill(self, where: str) -> Died:
        self.note("KILLED", where)
        self._died_here = True
        return self.engine.kill()

    def _only_the_living(self) -> None:
        if self.engine.dead:
            raise Died

    def _pass_lease(self) -> None:
        self.engine.forget_the_dead()
        before = len(self.engine.pending)
        self._as_process(lambda: self.engine.sweep(LEASE))
        woken = ", ".join(self._named(message) for message in self.engine.pending[before:])
        self.note("time", f"{LEASE:g} s pass; rescue sends {woken or 'nothing'}")

    def _is_stuck(self) -> bool:
        """Work is due, and no message will bring it."""
        engine = self.engine
        open_runs = [run for run in engine.rows("runs") if run["status"] != "done"]
        if any(run["status"] == "running" for run in open_runs):
            return True
        busy = {run["thread_id"] for run in open_runs}
        queued = engine.rows("turns", status="queued", ready=1)
        return any(turn["thread_id"] not in busy for turn in queued)

    def _answer_unknown(self) -> bool:
        """Questions about calls of which it is not known whether they took effect: only faults lead to them."""
        asked = views.inbox(self.engine.store, why=Why.UNKNOWN)
        for question in asked:
            answer = dict(self.when_unknown(question))
            self.note("person", f"about {question.tool}, whose outcome is not known: {answer}")
            self.engine.decide(DecisionRequest(target=question.id, action=Action.RESUME, payload=answer))
        return bool(asked)

    def _named(self, message: Pending) -> str:
        match message:
            case Dispatch():
                return "start a turn"
            case CallModel(step=step):
                return f"call the model, step {step}"
            case Header(call_ids=ids) | CallTool(call_ids=ids) | CallHere(call_ids=ids):
                if not self._tools.keys() >= set(ids):
                    self._tools = {row["id"]: row["tool"] for row in self.engine.rows("calls")}
                return "call " + ", ".join(self._tools[call_id] for call_id in ids)
            case _:
                words = "".join(
                    f" {letter.lower()}" if letter.isupper() else letter for letter in type(message).__name__
                )
                return words.strip()

    # Tools

    @contextmanager
    def _around(self, context: Context) -> Iterator[None]:
        """Around each execution of a tool, and of its reconcile hook."""
        self._only_the_living()
        if self._reconciles:
            with self._around_tools(context):
                yield
            return
        order = self._orders[context.call_id]
        self.places.tools += 1
        number = self.places.tools
        execution = _Execution(number=number, order=order)
        self._executions.append(execution)
        called = f"{order.tool}({_arguments(order.arguments)})"
        again = sum(known.order.call_id == order.call_id for known in self._executions)
        self.note("tool", called if again == 1 else f"{called}: execution {again} of this call")
        if self.schedule.has(FaultKind.KILL_BEFORE_TOOL, number):
            raise self._kill(f"before execution {number} of a tool, {order.tool}")
        outer, self._executing = self._executing, execution
        try:
            with self._around_tools(context):
                yield
        except Suspend:
            self.note("tool", f"{order.tool} asks for a decision")
            raise
        except Exception as error:
            self.note("tool", f"{order.tool} raises {type(error).__name__}: {words_of(error)}")
            self._after_tool(execution)
            raise
        finally:
            self._executing = outer
        self._after_tool(execution)

    def _after_tool(self, execution: _Execution) -> None:
        self._only_the_living()
        if self.schedule.has(FaultKind.STALL_IN_TOOL, execution.number):
            self._stall(execution)
        if self.schedule.has(FaultKind.KILL_AFTER_TOOL, execution.number):
            raise self._kill(
                f"after execution {execution.number} of a tool, {execution.order.tool}: its result is not stored"
            )

    def _stall(self, execution: _Execution) -> None:
        """Others take the process for dead and do its work. Then it continues, and knows nothing of that."""
        self.note("STALLED", f"{execution.order.tool} has returned, and its process stops for {STALL:g} s")
        armed, self.engine.die_at = self.engine.die_at, None
        inside, self._executing = self._executing, None
        self.engine.locks.lapse()
        for message in self.engine.sweep(STALL):
            self.engine.pending.remove(message)
            self.note("worker", f"another: {self._named(message)}")
            self.engine.deliver(message)
        self._executing, self.engine.die_at = inside, armed
        self.note("RESUMED", f"the process that called {execution.order.tool} continues")

    @contextmanager
    def reconciling(self, order: CallOrder) -> Iterator[None]:
        """The hook looks what became of a call: that is no execution of the tool."""
        self.note("hook", f"what became of {order.tool}({_arguments(order.arguments)})?")
        self._reconciles = True
        try:
            yield
        finally:
            self._reconciles = False

    def expect(self, order: CallOrder) -> None:
        """This call is carried out next, or soon."""
        self._orders[order.call_id] = order

    @property
    def executions(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Each execution of a tool, with those that were cut: its name and arguments."""
        return [(execution.order.tool, execution.order.arguments) for execution in self._executions]

    def declared(self, effect: RecordedEffect) -> Effect:
        """What the tool that had this effect says of itself."""
        (call,) = self.engine.rows("calls", id=effect.call_id) or [{"effect": Effect.PURE}]
        return Effect(call["effect"])

    # What can be asked

    def turn(self, turn_id: str) -> TurnView:
        return views.turn(self.engine.store, turn_id)

    def answer(self, turn_id: str) -> str | None:
        return self.turn(turn_id).answer

    def assert_answered(self, turn_id: str, text: str | None = None) -> None:
        """The turn was answered, with this text if one is given."""
        turn = self.turn(turn_id)
        if turn.disposition is not Disposition.ANSWERED:
            raise WorldError(f"turn {turn_id} was not answered: {turn.fate}")
        if text is not None and text not in (turn.answer or ""):
            raise WorldError(f"turn {turn_id} was answered {turn.answer!r}, without {text!r}")

    def inbox(self) -> list[OpenQuestion]:
        """The questions that wait for a person."""
        return views.inbox(self.engine.store)

    def calls(self, turn_id: str) -> list[CallView]:
        """Of the turn's run, as they are now."""
        run_id = self.turn(turn_id).run_id
        if run_id is None:
            return []
        rounds = [step for step in views.run(self.engine.store, run_id).steps if isinstance(step, ToolRound)]
        return [call for step in rounds for call in step.calls]

    def transcript(self, thread: str = "thread") -> tuple[Said, ...]:
        """What the model would read of the thread now."""
        with self.engine.store.read() as tx:
            past = journal.history(tx, thread)
        return build(past.entries, past.calls)

    def journal(self, turn_id: str) -> list[str]:
        """The kinds of the journal rows of the turn's run, in order."""
        run_id = self.turn(turn_id).run_id
        return [str(row["kind"]) for row in self.engine.rows("journal") if row["run_id"] == run_id]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Execution:
    number: int
    order: CallOrder


# What the engine uses of a world


class _SameSide(SideThread):
    """Runs its jobs in the thread that submits them."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def alive(self) -> bool:
        return True

    def submit(self, job: Callable[[], object]) -> None:
        """A killed process reads no result: what a tool was cut off with would be one."""
        job()
        if self._world.engine.dead:
            raise Died

    def dismiss(self) -> None: ...


class _SameThread(SideThreads):
    def __init__(self, world: World) -> None:
        self._side = _SameSide(world)

    def take(self) -> SideThread:
        return self._side

    def give_back(self, side: SideThread) -> None: ...


@dataclass(frozen=True, slots=True)
class _ClockedAbort:
    """The abort of work whose waits move the clock."""

    abort: Abort
    world: World

    def check(self) -> None:
        self.abort.check()

    def wait(self, seconds: float) -> None:
        self.world.engine.clock.pass_by(seconds)
        self.abort.check()

    def back_off(self, seconds: float) -> None:
        self.wait(seconds)


class _WorldModels:
    def __init__(self, world: World) -> None:
        room = world._room  # noqa: SLF001 - a part of it
        self._world = world
        self._catalog = ModelCatalog(
            None if room is None else TableProviders(room.providers, room.path / "agent.toml"),
            environ={}, scripts=Path() if room is None else room.path, given=world.model_for, jitter=lambda: 0.5,
            clock=lambda: world.engine.clock().timestamp(),
        )  # fmt: skip

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
        clocked = _ClockedAbort(abort, self._world)
        reply = self._catalog.complete(
            agent, prompt, abort=clocked, on_delta=on_delta, on_reset=on_reset, on_reasoning=on_reasoning
        )
        asks = ", ".join(f"{ask.name}({_arguments(ask.arguments or {})})" for ask in reply.asks)
        self._world.note("model", " ".join(filter(None, [repr(reply.text[:80]) if reply.text else "", asks])))
        return reply


class _WorldTools:
    """A tool box whose calls are known to the world, and take no time that would depend on the machine."""

    def __init__(self, world: World, box: ToolBox) -> None:
        self._world = world
        self._box = box
        self.specs: Callable[[AgentSpec], dict[str, ToolSpec]] = box.specs
        self.reader: Callable[[], ToolSpec] = box.reader
        self.invalid: Callable[[AgentSpec, str, dict[str, Any]], str | None] = box.invalid

    def run(
        self, agent: AgentSpec, order: CallOrder, *, abort: Abort, on_progress: Callable[[str], None]
    ) -> ToolOutcome:
        if self._world.answers is not None:
            return self._recorded(order)
        self._world.expect(order)
        clocked = _ClockedAbort(abort, self._world)
        return replace(self._box.run(agent, order, abort=clocked, on_progress=on_progress), seconds=None)

    def _recorded(self, order: CallOrder) -> ToolOutcome:
        assert self._world.answers is not None
        outcome = self._world.answers(order, self._world.engine.row("calls", id=order.call_id))
        return outcome or ToolOutcome(content="Nothing is recorded of this call.", code="not_recorded")

    def begin(self, agent: AgentSpec, orders: Sequence[CallOrder]) -> Series:
        for order in orders:
            self._world.expect(order)
        return _UntimedSeries(self._box.begin(agent, orders))

    def reconcile(self, agent: AgentSpec, order: CallOrder) -> ToolOutcome | None:
        with self._world.reconciling(order):
            return self._box.reconcile(agent, order)


@dataclass(frozen=True, slots=True)
class _UntimedSeries:
    series: Series

    def wait(self, seconds: float) -> list[ToolOutcome | None]:
        return [outcome and replace(outcome, seconds=None) for outcome in self.series.wait(seconds)]

    @property
    def under_way(self) -> int | None:
        return self.series.under_way

    def finish(self, *, abort: Abort, on_progress: Callable[[str], None]) -> ToolOutcome | None:
        return self.series.finish(abort=abort, on_progress=on_progress)


def _as_declared(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values as a file has them, as fields of this dataclass: "wait" as MixedRound.WAIT, a table as Limits."""
    hints = get_type_hints(kind)
    declared: dict[str, Any] = {}
    for name, value in given.items():
        try:
            declared[name] = _value_of(hints.get(name, Any), value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
    return declared


def _value_of(hint: Any, value: Any) -> Any:
    inner = get_args(hint)
    if value is None or hint is Any:
        return value
    if get_origin(hint) is UnionType:
        return _value_of(inner[0], value)
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_value_of(inner[0], member) for member in value)
    if get_origin(hint) is dict and isinstance(value, dict):
        return {key: _value_of(inner[1], member) for key, member in value.items()}
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return one_of(hint, value, "the value")
    if isinstance(hint, type) and is_dataclass(hint) and not isinstance(value, hint):
        return hint(**_as_declared(hint, dict(value)))
    return value


def _declared(agent: str, tools: Sequence[Callable[..., Any]]) -> dict[str, Tool]:
    declared: dict[str, Tool] = {}
    for function in tools:
        tool = declared_on(function)
        if tool is None:
            raise WorldError(f"agent {agent!r}: {function!r} is no tool: put @tool directly above its def")
        if tool.name in declared:
            raise WorldError(f"agent {agent!r} has two tools called {tool.name!r}: give one another name")
        declared[tool.name] = tool
    return declared


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


@cache
def _room(path: Path) -> Room:
    """Read once: its files are not expected to change during a test session."""
    return Room(path, environ=dict(os.environ), look_again=float("inf"))


@contextmanager
def _quiet() -> Iterator[None]:
    """Killed workers and results that come too late are what is tested: the engine's warnings of them would bury the
    steps.
    """
    before, logger = structlog.get_config(), logging.getLogger("chordage")
    level = logger.level
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        structlog.configure(**before)
        logger.setLevel(level)
