"""What plugins are shown in each phase of a run, and what their verdicts come to.

A plugin never sees a transaction: it is asked before one begins, and its notes are stored in the one that follows. An
agent without plugins has no session.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from chordage.orchestrator.core import phases, verdicts
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.model import Reply, Said
from chordage.orchestrator.core.phases import Hook, Scope
from chordage.orchestrator.core.plugin_state import Noter, SetState, StateRefused, combined
from chordage.orchestrator.core.reasons import Ending
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.gateways.ports import AgentPlugins
from chordage.orchestrator.gateways.tools.context import fault_of_question
from chordage.orchestrator.plugins.base import PluginFailed
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import plugin_state, runs
from chordage.orchestrator.store.database import Tx

log = structlog.get_logger()
SHOWN = "context_messages"  # in scope run: which context messages were shown, and when


@dataclass(kw_only=True, slots=True)
class PluginSession:
    """The plugins of an agent in one piece of work on a run. Collects what they note."""

    rt: Runtime
    plugins: AgentPlugins
    run: Run
    agent: AgentSpec
    step: int
    said: tuple[Said, ...] = ()
    said_before: int = 0  # how much of it is older than the run
    call_id: str = ""
    notes: list[SetState] = field(default_factory=list)
    _state: dict[Scope, dict[str, Any]] | None = None

    @property
    def noter(self) -> Noter:
        return Noter(thread_id=self.run.thread_id, run_id=self.run.id, step=self.step, call_id=self.call_id)

    def state(self) -> dict[Scope, dict[str, Any]]:
        if self._state is None:
            with self.rt.store.read() as tx:
                self._state = plugin_state.held(tx, self.noter)
        return self._state

    def of_call(self, call_id: str, step: int) -> PluginSession:
        """For one call of this step: its notes are stored with the call, and dropped if it fails for them."""
        return replace(self, call_id=call_id, step=step, notes=[], _state=None)

    def run_start(self) -> None:
        if self.plugins.listens(Hook.RUN_START):
            self._ask(Hook.RUN_START, phases.RunStart(**self._moment()))

    def before_inference(self, tools: Sequence[str]) -> verdicts.Inference:
        if self.plugins.listens(Hook.STEP_START):
            self._ask(Hook.STEP_START, phases.StepStart(**self._moment()))
        if not self.plugins.listens(Hook.BEFORE_INFERENCE):
            return verdicts.Inference()
        agent = self.agent
        shown = phases.BeforeInference(**self._moment(), model=agent.model, tools=tuple(tools), params=agent.params)
        return verdicts.inference(self._ask(Hook.BEFORE_INFERENCE, shown), self.plugins.ids)

    def context_texts(self, found: verdicts.Inference) -> tuple[str, ...]:
        """The context messages that this prompt shows. That it does is noted."""
        if not found.messages:
            return ()
        shown = {name: verdicts.Shown(**mark) for name, mark in self.state()[Scope.RUN].get(SHOWN, {}).items()}
        due = verdicts.due(found.messages, shown, self.step)
        marks = {name: {"step": mark.step, "digest": mark.digest} for name, mark in due.shown.items()}
        self.notes.append(SetState(scope=Scope.RUN, key=SHOWN, value=marks))
        return due.texts

    def after_inference(self, *, reply: Reply | None = None, error: ModelFailed | None = None) -> Ending | None:
        """AfterInference and StepEnd; also when the model failed."""
        if not (self.plugins.listens(Hook.AFTER_INFERENCE) or self.plugins.listens(Hook.STEP_END)):
            return None
        failure = None
        if error is not None:
            failure = phases.ModelError(fault=error.fault, message=str(error), attempts=error.attempts)
        shown = {**self._moment(reply), "reply": reply, "error": failure}
        ending = verdicts.after_inference(self._ask(Hook.AFTER_INFERENCE, phases.AfterInference(**shown)))
        self._ask(Hook.STEP_END, phases.StepEnd(**{**shown, "state": self.state()}))
        return ending

    def before_tool(self, call: phases.ShownCall) -> verdicts.Gate:
        """BeforeToolExecute. Amended arguments are shown once more: amending must not be a way around a rule."""
        if not self.plugins.listens(Hook.BEFORE_TOOL_EXECUTE):
            return verdicts.Gate()
        first = self._before_tool(call)
        if not first.amended:
            return first
        again = self._before_tool(replace(call, arguments=first.arguments(call.arguments)))
        return verdicts.Gate(
            verdict=again.verdict, plugin=again.plugin, code=again.code, amended=first.amended | again.amended
        )

    def _before_tool(self, call: phases.ShownCall) -> verdicts.Gate:
        shown = phases.BeforeToolExecute(**self._moment(), call=call)
        gate = verdicts.gate(self._ask(Hook.BEFORE_TOOL_EXECUTE, shown))
        question = gate.verdict.question if isinstance(gate.verdict, verdicts.SuspendCall) else None
        if question is not None and (fault := fault_of_question(question)) is not None:
            hook, plugin = Hook.BEFORE_TOOL_EXECUTE, gate.plugin or ""
            raise PluginFailed(f"plugin {plugin!r}, hook {hook}: asked a question: {fault}", plugin=plugin, hook=hook)
        return gate

    def after_tool(self, call: phases.ShownCall, content: str, code: str | None, seconds: float | None) -> str:
        """AfterToolExecute: the content as the plugins leave it, followed by what they add."""
        if not self.plugins.listens(Hook.AFTER_TOOL_EXECUTE):
            return content
        outcome = phases.ShownOutcome(content=content, code=code, seconds=seconds)
        shown = phases.AfterToolExecute(**self._moment(), call=call, outcome=outcome)
        aftermath = verdicts.aftermath(self._ask(Hook.AFTER_TOOL_EXECUTE, shown), self.plugins.ids)
        return "\n\n".join([content if aftermath.content is None else aftermath.content, *aftermath.messages])

    def run_end(self, ending: Ending) -> None:
        self._ask(Hook.RUN_END, phases.RunEnd(**self._moment(), ending=ending))

    def _moment(self, reply: Reply | None = None) -> dict[str, Any]:
        """What every phase shows."""
        run, usage = self.run, self.run.usage
        return {
            "run_id": run.id, "thread_id": run.thread_id, "agent": self.agent.name, "group": run.group,
            "step": self.step, "rounds": run.rounds, "usage": usage if reply is None else usage + reply.usage,
            "elapsed": run.worked(self.rt.now()), "said": self.said,
            "said_before": self.said_before, "state": self.state(),
        }  # fmt: skip

    def _ask(self, hook: Hook, context: Any) -> list[Any]:
        """The verdicts of all plugins. What one notes is seen by those asked in the next phase."""
        given = self.plugins.ask(hook, context)
        updates = verdicts.updates(given, self.plugins.ids)
        self.notes += updates
        for update in updates:
            values = self.state()[update.scope]
            with suppress(StateRefused):  # what is refused here is refused when it is stored
                values[update.key] = combined(values.get(update.key), update)
        return given


def session(rt: Runtime, run: Run, agent: AgentSpec, step: int, **known: Any) -> PluginSession:
    """Of an agent that has plugins."""
    return PluginSession(rt=rt, plugins=rt.plugin_sets(agent), run=run, agent=agent, step=step, **known)


def session_of_end(rt: Runtime, run: Run, agent: AgentSpec, ending: Ending | None) -> PluginSession | None:
    """RunEnd, once the end is on record. `ending`: if it is known. None: no plugin listens to it."""
    at_end = session(rt, run, agent, run.step)
    if not at_end.plugins.listens(Hook.RUN_END):
        return None
    if ending is None:
        with rt.store.read() as tx:
            ended = runs.load(tx, run.id)
        if ended is None or ended.reason is None:
            return None
        ending = Ending(reason=ended.reason, code=ended.code, detail=ended.detail)
    at_end.run_end(ending)
    return at_end


def store_notes(tx: Tx, session: PluginSession) -> str | None:
    """Store all that the plugins noted, in the transaction of what it is about; or nothing of it, and say why."""
    if not session.notes:
        return None
    with tx.begin_nested() as savepoint:
        conflict = plugin_state.note(tx, session.noter, session.notes)
        if conflict is not None:
            savepoint.rollback()
    return conflict


def store_notes_or_log(tx: Tx, session: PluginSession) -> None:
    """For notes beside something that is stored whether they can be kept or not."""
    if (conflict := store_notes(tx, session)) is not None:
        log.warning("notes of plugins were not kept", run=session.run.id, step=session.step, why=conflict)
