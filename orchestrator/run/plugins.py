"""Where plugins are heard: what each phase shows them, and what their verdicts come to.

A plugin never sees a transaction: it is asked before one begins, and what it noted is written in the one that follows.
An agent without plugins costs a look into a dict.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from chordage.orchestrator.core import phases, verdicts
from chordage.orchestrator.core.agent import AgentSpec, Effect
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.model import Reply, Said
from chordage.orchestrator.core.phases import Hook, Scope
from chordage.orchestrator.core.plugin_state import Noter, Refused, SetState, combined
from chordage.orchestrator.core.reasons import Ending
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.plugins.plugin_set import PluginSet
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import plugin_state, runs
from chordage.orchestrator.store.database import Tx

log = structlog.get_logger()
SHOWN = "context_messages"  # in scope run: which context messages were shown, and when


@dataclass(kw_only=True, slots=True)
class PluginSession:
    """One piece of work on a run, and the plugins that are heard in it. Collects what they note."""

    rt: Runtime
    plugins: PluginSet
    run: Run
    agent: AgentSpec
    step: int
    said: tuple[Said, ...] = ()
    said_before: int = 0
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

    def moment(self, reply: Reply | None = None) -> dict[str, Any]:
        """What every phase shows."""
        run, usage = self.run, self.run.usage
        return {
            "run_id": run.id, "thread_id": run.thread_id, "agent": self.agent.name, "group": run.group,
            "step": self.step, "rounds": run.rounds, "usage": usage if reply is None else usage + reply.usage,
            "elapsed": run.worked(self.rt.now()), "said": self.said,
            "said_before": self.said_before, "state": self.state(),
        }  # fmt: skip

    def hear(self, hook: Hook, context: Any) -> list[Any]:
        """Their verdicts; what they note is seen by whoever is asked next."""
        given = self.plugins.ask(hook, context)
        new = verdicts.updates(given, self.plugins.ids)
        self.notes += new
        for one in new:
            values = self.state()[one.scope]
            with suppress(Refused):  # what is refused here is refused when it is written
                values[one.key] = combined(values.get(one.key), one)
        return given

    def of_call(self, call_id: str, step: int) -> PluginSession:
        """The same for one call of this step: what is noted is the call's, and fails with it."""
        return replace(self, call_id=call_id, step=step, notes=[], _state=None)


def session(rt: Runtime, run: Run, agent: AgentSpec, step: int, **known: Any) -> PluginSession:
    return PluginSession(rt=rt, plugins=rt.plugin_sets(agent), run=run, agent=agent, step=step, **known)


def start(at: PluginSession, *, is_first: bool) -> None:
    """RunStart, before the model is asked for the first time."""
    if is_first and at.plugins.listens(Hook.RUN_START):
        at.hear(Hook.RUN_START, phases.RunStart(**at.moment()))


def before_inference(at: PluginSession, tools: Sequence[str]) -> verdicts.Inference:
    if at.plugins.listens(Hook.STEP_START):
        at.hear(Hook.STEP_START, phases.StepStart(**at.moment()))
    if not at.plugins.listens(Hook.BEFORE_INFERENCE):
        return verdicts.Inference()
    shown = phases.BeforeInference(**at.moment(), model=at.agent.model, tools=tuple(tools), params=at.agent.params)
    return verdicts.inference(at.hear(Hook.BEFORE_INFERENCE, shown), at.plugins.ids)


def texts_due(at: PluginSession, found: verdicts.Inference) -> tuple[str, ...]:
    """The context messages that are shown in this prompt; that they were is noted."""
    if not found.messages:
        return ()
    book = {name: verdicts.Shown(**mark) for name, mark in at.state()[Scope.RUN].get(SHOWN, {}).items()}
    due = verdicts.due(found.messages, book, at.step)
    marks = {name: {"step": mark.step, "digest": mark.digest} for name, mark in due.shown.items()}
    at.notes.append(SetState(scope=Scope.RUN, key=SHOWN, value=marks))
    return due.texts


def after_inference(
    at: PluginSession, *, reply: Reply | None = None, error: ModelFailed | None = None
) -> Ending | None:
    """AfterInference and StepEnd; also when the model failed."""
    if not (at.plugins.listens(Hook.AFTER_INFERENCE) or at.plugins.listens(Hook.STEP_END)):
        return None
    failed = None if error is None else _shown_error(error)
    shown = {**at.moment(reply), "reply": reply, "error": failed}
    ending = verdicts.after_inference(at.hear(Hook.AFTER_INFERENCE, phases.AfterInference(**shown)))
    at.hear(Hook.STEP_END, phases.StepEnd(**{**shown, "state": at.state()}))
    return ending


def _shown_error(error: ModelFailed) -> phases.ModelError:
    return phases.ModelError(fault=error.fault, message=str(error), attempts=error.attempts)


def shown_call(
    call_id: str,
    ask_id: str,
    tool: str,
    arguments: dict[str, Any],
    effect: Effect,
    resumed: phases.Resumed | None = None,
) -> phases.ShownCall:
    return phases.ShownCall(id=call_id, ask_id=ask_id, tool=tool, arguments=arguments, effect=effect, resumed=resumed)


def gate(at: PluginSession, call: phases.ShownCall) -> verdicts.Gate:
    """BeforeToolExecute. Amended arguments are looked at once more: a rule must not be slipped past by amending."""
    if not at.plugins.listens(Hook.BEFORE_TOOL_EXECUTE):
        return verdicts.Gate()
    found = verdicts.gate(at.hear(Hook.BEFORE_TOOL_EXECUTE, phases.BeforeToolExecute(**at.moment(), call=call)))
    if not found.amended:
        return found
    amended = shown_call(call.id, call.ask_id, call.tool, found.arguments(call.arguments), call.effect, call.resumed)
    again = at.hear(Hook.BEFORE_TOOL_EXECUTE, phases.BeforeToolExecute(**at.moment(), call=amended))
    judged = verdicts.gate(again)
    return verdicts.Gate(
        verdict=judged.verdict, plugin=judged.plugin, code=judged.code, amended=found.amended | judged.amended
    )


def after_tool(at: PluginSession, call: phases.ShownCall, content: str, code: str | None, seconds: float | None) -> str:
    """AfterToolExecute: the content as the plugins leave it, with what they add behind it."""
    if not at.plugins.listens(Hook.AFTER_TOOL_EXECUTE):
        return content
    outcome = phases.ShownOutcome(content=content, code=code, seconds=seconds)
    shown = phases.AfterToolExecute(**at.moment(), call=call, outcome=outcome)
    found = verdicts.aftermath(at.hear(Hook.AFTER_TOOL_EXECUTE, shown), at.plugins.ids)
    return "\n\n".join([content if found.content is None else found.content, *found.messages])


def run_end(rt: Runtime, run: Run) -> None:
    """RunEnd, after the end is on record: nothing that goes wrong here changes it."""
    try:
        at = session(rt, run, rt.agents.get(run.agent), run.step)
        if at.plugins.listens(Hook.RUN_END):
            _hear_the_end(rt, at)
    except Exception:
        log.exception("plugins did not hear of the end", run=run.id)


def _hear_the_end(rt: Runtime, at: PluginSession) -> None:
    with rt.store.read() as tx:
        ended = runs.load(tx, at.run.id)
    if ended is None or ended.reason is None:
        return
    ending = Ending(reason=ended.reason, code=ended.code, detail=ended.detail)
    at.hear(Hook.RUN_END, phases.RunEnd(**at.moment(), ending=ending))
    with rt.store.write() as tx:
        note(tx, at)


def write_down(rt: Runtime, at: PluginSession) -> None:
    """What they noted where no reply is recorded that it could go with: the run is about to end."""
    if at.notes:
        with rt.store.write() as tx:
            note_beside(tx, at)


def note_beside(tx: Tx, at: PluginSession) -> None:
    """What they noted, with something that stands whether it can be kept or not."""
    if (conflict := note(tx, at)) is not None:
        log.warning("what plugins noted was not kept", run=at.run.id, step=at.step, why=conflict)


def note(tx: Tx, at: PluginSession) -> str | None:
    """What they noted, in the transaction of what it is about: all of it, or nothing and why."""
    if not at.notes:
        return None
    with tx.begin_nested() as inner:
        conflict = plugin_state.note(tx, at.noter, at.notes)
        if conflict is not None:
            inner.rollback()
    return conflict
