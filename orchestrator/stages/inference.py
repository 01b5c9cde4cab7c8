"""4. One model call; its reply is recorded in the same commit as what follows from it.

The call is made by whoever asks first. A mark in Redis keeps others from asking the model at the same time, from the
first step on; the heartbeat puts the claim on record once the call lasts, and a wake-up that had to be sent again
claims the run in SQL before it calls. If all of that fails, two calls are made and one reply is written: the guard on
step and epoch sees to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import Aborted, HandedOver, ModelFailed, OutOfTime, UserError
from chordage.orchestrator.core.intents import CallModel, Intent
from chordage.orchestrator.core.model import Attempt, Fault, Prompt, Reply, Said, ToolOffer
from chordage.orchestrator.core.moves import Infer, Move, Plan
from chordage.orchestrator.core.output import demand
from chordage.orchestrator.core.planning.plan import PlanDecision
from chordage.orchestrator.core.planning.prompts import PlannerAsk
from chordage.orchestrator.core.reasons import Ending, failed
from chordage.orchestrator.core.records import Answer, Checkpoint, Entry, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.stepping import Control, RequestTerms
from chordage.orchestrator.core.text import clean_reply, clean_text
from chordage.orchestrator.core.transcript import TRIES, build, older_than, tries
from chordage.orchestrator.core.verdicts import Inference
from chordage.orchestrator.gateways.in_flight import InFlightWork
from chordage.orchestrator.plugins.base import PluginFailed
from chordage.orchestrator.plugins.planners import PlannerFailed
from chordage.orchestrator.run import (
    compaction,
    endings,
    limits,
    model_request,
    planning,
    plugins,
    steering,
    stepping,
    transitions,
    waiting,
)
from chordage.orchestrator.run.compaction import Summing
from chordage.orchestrator.run.model_request import ModelRequest
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, journal, runs
from chordage.orchestrator.store.runs import RunClaim
from chordage.orchestrator.strategies import shipped

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    at: RunClaim
    scene: ModelRequest
    prompt: Prompt
    plan: PlannerAsk | None = None  # it is the planner that is asked
    ends: Ending | None = None  # a plugin ends the run instead of the call


def call_model(rt: Runtime, run_id: str, step: int, seen: Run | None = None) -> list[Intent]:
    run = seen or _load(rt, run_id)
    if run is None or run.status is not RunStatus.RUNNING or run.next_inference != step:
        return []
    key = run.work_key(step)
    if not rt.locks.once(key):
        return []
    try:
        return _carry_out(rt, run, step, key)
    except Aborted:
        return []
    except HandedOver:
        rt.locks.forget(key)
        return [CallModel(run_id=run.id, step=step, group=run.group, of=run.subject)]
    except BaseException:
        rt.locks.forget(key)
        raise


def _load(rt: Runtime, run_id: str) -> Run | None:
    with rt.store.read() as tx:
        return runs.load(tx, run_id)


def _has_just_started(run: Run) -> bool:
    """Its lock on the thread is fresh: whoever started the run makes its first call, in the same breath."""
    return run.step == 1 and not run.resends and run.control is Control.AUTO


def _carry_out(rt: Runtime, run: Run, step: int, key: str) -> list[Intent]:
    token = _claim_if_in_doubt(rt, run)
    if run.resends and token is None:
        return []
    hand = InFlightWork(run_id=run.id, epoch=run.epoch, key=key, thread_id=run.thread_id, token=token)
    at = RunClaim(run=run, step=step, token=token)
    spoken = Spoken(rt, run, step)
    try:
        limit = limits.deadline(rt, run, rt.agents.get(run.agent))
        hand.left = None if limit is None else lambda: limit.left(rt.now())
        if run.steers and (onward := steering.before_the_model(rt, at)) is not None:
            return onward
        with rt.in_flight.tracking(hand):
            work = _prepare(rt, at)
            if isinstance(work, Summing):
                return compaction.carry_out(rt, work, hand)
            if work.ends is not None:
                plugins.write_down(rt, work.scene.hearing)
                return endings.end_here(rt, at, work.ends)
            return _record(rt, work, *_ask(rt, work, hand, spoken))
    except PluginFailed as error:
        return endings.end_here(rt, at, failed("plugin", str(error)))
    except OutOfTime as error:
        assert limit is not None
        return limits.end_here(rt, at, limit.ending, spoken.broken(error.attempts))
    except (ModelFailed, PlannerFailed) as error:
        if run.control is Control.STEP and (held := stepping.hold_failed(rt, at, error)) is not None:
            rt.locks.forget(key)
            return held
        return _end_in_vain(rt, at, error)
    except UserError as error:
        _let_go(rt, at)
        rt.locks.forget(key)
        return endings.retry_unknown_agent(rt, at, error)
    except (HandedOver, Aborted):
        _let_go(rt, at)
        raise
    except (Exception, SystemExit, KeyboardInterrupt):
        endings.record_crash(rt, run)
        raise


def _end_in_vain(rt: Runtime, at: RunClaim, error: ModelFailed | PlannerFailed) -> list[Intent]:
    if isinstance(error, PlannerFailed):
        return endings.end_here(rt, at, failed("planner", str(error)))
    return endings.end_here(rt, at, failed(f"model_{error.fault.value}", str(error)), attempts=error.attempts)


def _let_go(rt: Runtime, at: RunClaim) -> None:
    if at.token is not None:
        with rt.store.write() as tx:
            runs.unclaim(tx, at.run.id, at.token, rt.leases.until(rt.now()))


def _claim_if_in_doubt(rt: Runtime, run: Run) -> str | None:
    if not run.resends:
        return None
    token, now = rt.new_id(), rt.now()
    with rt.store.write() as tx:
        claimed = runs.claim(tx, run, token, rt.worker, rt.leases.until(now))
    return token if claimed else None


def _prepare(rt: Runtime, at: RunClaim) -> Work | Summing:
    run = at.run
    agent = rt.agents.get(run.agent)
    plans = shipped.plans(run.strategy)
    with rt.store.read() as tx:
        past = journal.history(tx, run.thread_id, plans_of=run.id if plans else None)
    entries, known = past.entries, past.calls
    said = build(entries, known)
    terms = stepping.terms(rt, run, said) if run.control is Control.STEP else None
    agent = agent if terms is None else terms.tune(agent)
    planned = planning.read(rt, run, agent, entries, known) if plans else None
    if planned is not None and terms is not None:
        planned = planned.offering(name for name in planned.offered if terms.offers(name))
    move = transitions.next_move(run, agent, None, run.started_at, plans=planned)
    specs = {} if move == Infer(offer_tools=False) else model_request.specs(rt, agent, known)
    specs = specs if terms is None else {name: spec for name, spec in specs.items() if terms.offers(name)}
    heard = plugins.session(rt, run, agent, at.step, said=said)
    if heard.plugins.plugins:
        heard.said_before = _said_before(run, entries, known)
    plugins.start(heard, is_first=_is_first(run, at.step, entries, terms))
    if not isinstance(move, Plan) or agent.plan.history:
        shorter = compaction.due(at, heard, past, plans=plans, terms=terms)
        if shorter is not None:
            return shorter
    found = plugins.before_inference(heard, list(specs))
    offered = {name: spec for name, spec in specs.items() if found.offers(name)}
    if planned is not None and isinstance(move, Plan):
        planned = planned.offering(offered)
    scene = ModelRequest(
        agent=replace(agent, model=found.model or agent.model), specs=offered, known=known, hearing=heard, terms=terms,
        withheld=_withheld(rt, agent, specs, offered, move, terms), planning=planned,
        asks_planner=isinstance(move, Plan), form=None if isinstance(move, Plan) else rt.outputs(agent),
        recalls=compaction.has_shortened(run, entries),
    )  # fmt: skip
    return _work(at, scene, _prompt(scene, said, found), entries, found.ending)


def _withheld(
    rt: Runtime,
    agent: AgentSpec,
    specs: Collection[str],
    offered: Collection[str],
    move: Move,
    terms: RequestTerms | None,
) -> frozenset[str]:
    """What the model was not offered, though the agent has it. In a stepped run also where none were to be: what was
    kept from it then is kept from it when its reply is settled.
    """
    if terms is not None and move == Infer(offer_tools=False):
        return frozenset(model_request.specs(rt, agent))
    return frozenset(specs) - frozenset(offered)


def _work(at: RunClaim, scene: ModelRequest, prompt: Prompt, entries: Sequence[Entry], ends: Ending | None) -> Work:
    if scene.planning is None:
        return Work(at=at, scene=scene, prompt=prompt, ends=ends)
    if not scene.asks_planner:
        told = planning.answer(prompt, scene.planning) if scene.planning.rounds else prompt
        return Work(at=at, scene=scene, prompt=told, ends=ends)
    asked = planning.ask(at.run, scene.agent, scene.planning, entries, prompt.offers)
    return Work(at=at, scene=scene, prompt=prompt, plan=asked, ends=ends)


def _is_first(run: Run, step: int, entries: Sequence[Entry], terms: RequestTerms | None) -> bool:
    """Whether the model is asked for the first time: messages that were taken in at once have steps before it."""
    if terms is not None:
        return terms.begins and not any(e.run_id == run.id for e in tries(entries))
    replies = {Checkpoint.ASSISTANT_TURN, Checkpoint.PLAN, *TRIES}
    return step == 1 or (not run.rounds and not any(e.run_id == run.id and e.kind in replies for e in entries))


def _said_before(run: Run, entries: Sequence[Entry], known: Sequence[Answer]) -> int:
    """How much of what was said is older than the run."""
    return len(build(older_than(run.id, entries), known))


def _prompt(scene: ModelRequest, said: tuple[Said, ...], found: Inference) -> Prompt:
    offers = tuple(
        ToolOffer(name=spec.name, description=spec.description, schema=spec.schema) for spec in scene.specs.values()
    )
    schema = None if scene.form is None else scene.form.schema
    demanded = "" if schema is None else demand(schema)
    stable = "\n\n".join(text for text in (scene.agent.instructions, demanded) if text)
    system = "\n\n".join(text for text in (stable, *plugins.texts_due(scene.hearing, found)) if text)
    return Prompt(
        system=system, said=said, offers=offers, params={**scene.agent.params, **found.params}, output=schema,
        cache=scene.agent.prompt_cache, stable=len(stable),
    )  # fmt: skip


class Spoken:
    """What watchers were shown of the reply that is being made."""

    def __init__(self, rt: Runtime, run: Run, step: int) -> None:
        self._rt = rt
        self._run = run
        self._step = step
        self._pieces: list[str] = []
        self.told: Mapping[str, Any] | None = None

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self._rt.events.emit(self._run.id, "model.delta", step=self._step, text=text)

    def reset(self) -> None:
        """The reply is begun again. Watchers have to forget what they were shown of this step."""
        self._pieces.clear()
        self._rt.events.emit(self._run.id, "model.reset", step=self._step)

    def broken(self, attempts: Sequence[Attempt]) -> limits.Broken:
        text = clean_text("".join(self._pieces))
        return limits.Broken(text=text, attempts=tuple(attempts), told=self.told)


def _ask(rt: Runtime, work: Work, hand: InFlightWork, spoken: Spoken) -> tuple[Reply, PlanDecision | None]:
    hand.check()
    if work.scene.planning is not None:
        spoken.told = planning.told(work.scene.planning)
    if work.at.run.resends:
        spoken.reset()  # whoever asked before us may have been killed in the middle of a text
    try:
        if work.plan is not None:
            return planning.hear(rt, work.scene.agent, work.plan, hand)
        reply = rt.models.complete(
            work.scene.agent, work.prompt, abort=hand, on_delta=spoken.add, on_reset=spoken.reset
        )
    except ModelFailed as error:
        _tell_of_failure(rt, work, error)
        raise
    except HandedOver:
        spoken.reset()
        raise
    except OutOfTime as error:
        _tell_of_failure(rt, work, ModelFailed(str(error), fault=Fault.TIMEOUT, attempts=error.attempts))
        raise
    return reply, None


def _tell_of_failure(rt: Runtime, work: Work, error: ModelFailed) -> None:
    plugins.after_inference(work.scene.hearing, error=error)
    plugins.write_down(rt, work.scene.hearing)


def _record(rt: Runtime, work: Work, reply: Reply, plan: PlanDecision | None) -> list[Intent]:
    run, step = work.at.run, work.at.step
    scene = _with_lives(rt, work, reply) if work.scene.recalls and reply.asks else work.scene
    judged = transitions.judge(rt, work.at, scene, reply, plan)
    crossing = rt.store.insist(lambda tx: transitions.after_reply(tx, rt, work.at, scene, judged))
    if not crossing.ours:
        log.warning("late reply refused", run=run.id, step=step, epoch=run.epoch)
    elif plan is not None:
        rt.events.emit(run.id, "plan.made", step=step, ends=plan.ends, commands=len(plan.commands))
    else:
        rt.events.emit(run.id, "model.replied", step=step, text=reply.text, calls=len(reply.asks))
    steering.tell(rt, run, crossing)
    if crossing.ended:
        endings.tell_the_end(rt, run, crossing.ended, crossing.usage)
    if crossing.rests:
        waiting.tell_the_rest(rt, run)
    if crossing.held:
        stepping.tell(rt, run)
    if crossing.goes_on and not _has_just_started(run):
        rt.locks.extend(run.thread_id, run.owner)
    return crossing.intents


def _with_lives(rt: Runtime, work: Work, reply: Reply) -> ModelRequest:
    ids = {ask.id for ask in clean_reply(reply).asks}
    with rt.store.read() as tx:
        return replace(work.scene, lives=calls.count_generations(tx, work.at.run.id, ids))
