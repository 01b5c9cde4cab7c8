"""4. One model call; its reply is recorded in the same commit as what follows from it.

The first worker to ask makes the call. From the first step on a mark in Redis keeps others from asking the model at
the same time; the heartbeat records the claim once the call lasts; and after a wake-up that had to be sent again, the
run is claimed in SQL before the call. If all of that fails, two calls are made and one reply is written: the guard on
step and epoch sees to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

import structlog

from chordage.orchestrator.core import transcript
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import Aborted, HandedOver, ModelFailed, OutOfTime, UserError
from chordage.orchestrator.core.intents import CallModel, Intent
from chordage.orchestrator.core.model import Attempt, Fault, Prompt, Reply, Said, ToolOffer
from chordage.orchestrator.core.moves import Infer, Move, Plan
from chordage.orchestrator.core.output import demand
from chordage.orchestrator.core.planning.plan import PlanDecision
from chordage.orchestrator.core.planning.prompts import PlannerRequest
from chordage.orchestrator.core.planning.state import Planning
from chordage.orchestrator.core.reasons import Ending, failed
from chordage.orchestrator.core.records import Checkpoint, Entry, History, Run
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.core.stepping import Control, RequestTerms
from chordage.orchestrator.core.text import clean_reply, clean_text
from chordage.orchestrator.core.transcript import COMPACTION_KINDS, build, compactions, current_summary, older_than
from chordage.orchestrator.core.verdicts import Inference
from chordage.orchestrator.gateways.in_flight import InFlightWork
from chordage.orchestrator.plugins.base import PluginFailed
from chordage.orchestrator.plugins.planners import PlannerFailed
from chordage.orchestrator.run import (
    agent_versions,
    client_tools,
    compaction,
    endings,
    forking,
    limits,
    placing,
    planning,
    plugins,
    steering,
    stepping,
    transitions,
)
from chordage.orchestrator.run.compaction import Compaction
from chordage.orchestrator.run.limits import PartialReply
from chordage.orchestrator.run.model_request import ModelRequest, offered_tools
from chordage.orchestrator.run.plugins import PluginSession
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, journal, processes, runs
from chordage.orchestrator.store.runs import RunClaim
from chordage.orchestrator.strategies import shipped

log = structlog.get_logger()

_RESEND = 10**12  # in the number of an attempt, more than the milliseconds that a run takes


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedCall:
    request: ModelRequest
    prompt: Prompt
    planner: PlannerRequest | None = None  # the planner is asked
    ending: Ending | None = None  # a plugin ends the run instead of the call


def call_model(
    rt: Runtime, run_id: str, step: int, seen: Run | None = None, past: History | None = None
) -> list[Intent]:
    run = seen or _load(rt, run_id)
    if run is None or run.status is not RunStatus.RUNNING or run.next_inference != step:
        return []
    key = run.work_key(step)
    in_doubt = bool(run.resends)
    if past is not None:
        rt.locks.mark(key)
    elif not rt.locks.once(key):
        in_doubt = _take_over(rt, key)
        if not in_doubt:
            return []
    try:
        return _ask_and_record(rt, run, step, key, past, in_doubt=in_doubt)
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


def _take_over(rt: Runtime, key: str) -> bool:
    """Whether the work is ours, because the process that has it in flight is gone. It did not end in order, so its
    successor is on record before it begins.
    """
    holder = rt.locks.holder(key)
    if holder is None:
        return False
    with rt.store.read() as tx:
        if not processes.is_gone(tx, holder):
            return False
    rt.locks.forget(key)
    return rt.locks.once(key)


def _ask_and_record(
    rt: Runtime, run: Run, step: int, key: str, past: History | None, *, in_doubt: bool
) -> list[Intent]:
    token = _claim(rt, run) if in_doubt else None
    if in_doubt and token is None:
        return []
    work = InFlightWork(
        run_id=run.id, epoch=run.epoch, key=key, thread_id=run.thread_id, token=token,
        paused=lambda seconds: rt.locks.pause(key, rt.now() + timedelta(seconds=seconds)),
    )  # fmt: skip
    claim = RunClaim(run=run, step=step, token=token)
    text = StreamedText(rt, run, step)
    try:
        agent = rt.agent_of(run)
        if agent.digest:
            if agent.pinned_tools is None and agent.digest not in rt.noted_versions:
                agent_versions.note(rt, agent)
            claim = replace(claim, digest=agent.digest)
        limit = limits.deadline(rt, run, agent) if run.may_have_timeout(agent.limits) else None
        work.left = None if limit is None else lambda: limit.left(rt.now())
        if run.steers and (intents := steering.take_in_before_request(rt, claim)) is not None:
            return intents
        with rt.in_flight.tracking(work):
            prepared = _prepare(rt, claim, agent, past)
            if isinstance(prepared, Compaction):
                return compaction.carry_out(rt, prepared, work)
            if prepared.ending is not None:
                _store_notes(rt, prepared.request.session)
                return endings.end_here(rt, claim, prepared.ending)
            return _record(rt, prepared.request, work, *_ask(rt, prepared, work, text))
    except PluginFailed as error:
        return endings.end_here(rt, claim, failed("plugin", str(error)))
    except OutOfTime as error:
        assert limit is not None
        return limits.end_out_of_time(rt, claim, limit.ending, text.partial(error.attempts))
    except (ModelFailed, PlannerFailed) as error:
        if run.control is Control.STEP and (held := stepping.hold_failed(rt, claim, error)) is not None:
            rt.locks.forget(key)
            return held
        if isinstance(error, PlannerFailed):
            return endings.end_here(rt, claim, failed("planner", str(error)))
        ending = failed(f"model_{error.fault.value}", str(error))
        return endings.end_here(rt, claim, ending, attempts=error.attempts)
    except UserError as error:
        _unclaim(rt, claim)
        rt.locks.forget(key)
        return endings.retry_unknown_agent(rt, claim, error)
    except (HandedOver, Aborted):
        _unclaim(rt, claim)
        raise
    except (Exception, SystemExit, KeyboardInterrupt):
        endings.record_crash(rt, run)
        raise


def _claim(rt: Runtime, run: Run) -> str | None:
    token = rt.new_id()
    with Unit(rt) as unit:
        claimed = runs.claim(unit.tx, run, token, rt.worker, unit.lease())
    return token if claimed else None


def _unclaim(rt: Runtime, claim: RunClaim) -> None:
    if claim.token is not None:
        with Unit(rt) as unit:
            runs.unclaim(unit.tx, claim.run.id, claim.token, unit.lease())


def _store_notes(rt: Runtime, session: PluginSession | None) -> None:
    """Where no reply is recorded that the notes could go with: the run is about to end."""
    if session is not None and session.notes:
        with Unit(rt) as unit:
            plugins.store_notes_or_log(unit.tx, session)


# Preparing the request. What a turn does not use is not entered.


def _prepare(rt: Runtime, claim: RunClaim, agent: AgentSpec, past: History | None) -> PreparedCall | Compaction:
    run = claim.run
    plans = shipped.plans(run.strategy)
    if past is None or not (past.is_read or _is_never_cut(agent, past)):
        past = _read_history(rt, run, plans=plans)
    entries, known = past.entries, past.calls
    said, brings = build(entries, known), transcript.client_tools(run.id, entries)
    terms = stepping.terms(rt, run, said) if run.control is Control.STEP else None
    agent = agent if terms is None else terms.tune(agent)
    agent = agent if run.fork_of is None else forking.tune(rt, run, agent)
    planned = planning.read(rt, run, agent, entries, known) if plans else None
    if planned is not None and terms is not None:
        planned = planned.offering(name for name in planned.offered if terms.offers(name))
    # As of the start: a time limit that is reached meanwhile gives up the call, and does not change the request.
    move = transitions.choose_move(run, agent, None, run.started_at, plans=planned)
    offers_none = move == Infer(offer_tools=False)
    specs = {} if offers_none else offered_tools(rt, agent, known)
    brought = client_tools.offered(specs, brings) if brings else {}
    if not offers_none:
        specs |= {name: tool.spec for name, tool in brought.items()}
    if terms is not None:
        specs = {name: spec for name, spec in specs.items() if terms.offers(name)}
    session = _start_plugins(rt, claim, agent, past, said, terms)
    if (not isinstance(move, Plan) or agent.plan.history) and _may_compact(agent, past, terms):
        summary = compaction.due(claim, agent, session, past, plans=plans, terms=terms)
        if summary is not None:
            return summary
    changes = Inference() if session is None else session.before_inference(list(specs))
    offered = {name: spec for name, spec in specs.items() if changes.offers(name)}
    if planned is not None and isinstance(move, Plan):
        planned = planned.offering(offered)
    request = ModelRequest(
        claim=claim, agent=replace(agent, model=changes.model) if changes.model else agent, specs=offered, known=known,
        past=past, session=session, terms=terms, client_tools=brought,
        withheld=_withheld(rt, agent, specs, offered, move, terms) | (brought.keys() - offered.keys()),
        planning=planned, asks_planner=isinstance(move, Plan),
        form=None if isinstance(move, Plan) else rt.outputs(agent), recalls=_is_summarised(run, entries),
    )  # fmt: skip
    prompt = _prompt(request, said, changes)
    if planned is None:
        return PreparedCall(request=request, prompt=prompt, ending=changes.ending)
    return _planned(request, prompt, planned, entries, changes.ending)


def _read_history(rt: Runtime, run: Run, *, plans: bool) -> History:
    with rt.store.read() as tx:
        return journal.history(tx, run.thread_id, plans_of=run.id if plans else None)


def _is_never_cut(agent: AgentSpec, past: History) -> bool:
    """No summary replaces a part of it, for which the ids of its entries would be needed."""
    return not _may_compact(agent, past, None)


def _may_compact(agent: AgentSpec, past: History, terms: RequestTerms | None) -> bool:
    """There is a threshold, or a summary was asked for."""
    return agent.compaction.threshold is not None or bool(past.asked) or (terms is not None and bool(terms.compacts))


def _is_summarised(run: Run, entries: Sequence[Entry]) -> bool:
    """Whether a summary replaces something of this run."""
    summary, _ = current_summary(entries)
    return summary is not None and summary.run_id == run.id


def _start_plugins(
    rt: Runtime,
    claim: RunClaim,
    agent: AgentSpec,
    past: History,
    said: tuple[Said, ...],
    terms: RequestTerms | None,
) -> PluginSession | None:
    run, entries = claim.run, past.entries
    if not rt.has_plugins(agent):
        return None
    session = plugins.session(rt, run, agent, claim.step, said=said)
    session.said_before = len(build(older_than(run.id, entries), past.calls))
    if _is_first(run, claim.step, entries, terms):
        session.run_start()
    return session


def _is_first(run: Run, step: int, entries: Sequence[Entry], terms: RequestTerms | None) -> bool:
    """Whether the model is asked for the first time: messages that were taken in at once have steps before it."""
    if terms is not None:
        return terms.begins and not any(entry.run_id == run.id for entry in compactions(entries))
    replies = {Checkpoint.ASSISTANT_TURN, Checkpoint.PLAN, *COMPACTION_KINDS}
    return step == 1 or (not run.rounds and not any(e.run_id == run.id and e.kind in replies for e in entries))


def _withheld(
    rt: Runtime,
    agent: AgentSpec,
    specs: Collection[str],
    offered: Collection[str],
    move: Move,
    terms: RequestTerms | None,
) -> frozenset[str]:
    """What the model was not offered, though the agent has it. In a stepped run also where no tools were to be offered:
    what was kept from the model then is kept from it when its reply is settled.
    """
    if terms is not None and move == Infer(offer_tools=False):
        return frozenset(offered_tools(rt, agent))
    return frozenset(specs) - frozenset(offered)


def _planned(
    request: ModelRequest, prompt: Prompt, planned: Planning, entries: Sequence[Entry], ending: Ending | None
) -> PreparedCall:
    if not request.asks_planner:
        prompt = planning.with_records(prompt, planned) if planned.rounds else prompt
        return PreparedCall(request=request, prompt=prompt, ending=ending)
    planner = planning.planner_request(request.run, request.agent, planned, entries, prompt.offers)
    return PreparedCall(request=request, prompt=prompt, planner=planner, ending=ending)


def _prompt(request: ModelRequest, said: tuple[Said, ...], changes: Inference) -> Prompt:
    agent, session = request.agent, request.session
    offers = tuple(
        ToolOffer(name=spec.name, description=spec.description, schema=spec.schema) for spec in request.specs.values()
    )
    schema = None if request.form is None else request.form.schema
    demanded = "" if schema is None else demand(schema)
    stable = "\n\n".join(text for text in (agent.instructions, demanded) if text)
    added = () if session is None else session.context_texts(changes)
    system = "\n\n".join(text for text in (stable, *added) if text)
    return Prompt(
        system=system, said=said, offers=offers, params={**agent.params, **changes.params}, output=schema,
        cache=agent.prompt_cache, stable=len(stable),
    )  # fmt: skip


# Asking, and recording what came of it.


class StreamedText:
    """What watchers were shown of the reply that is being made.

    Each piece says which attempt it belongs to and where in its text it stands. The number of an attempt is made of the
    wake-ups that were sent again and of the clock, so it grows from one worker to the next without being stored.
    """

    def __init__(self, rt: Runtime, run: Run, step: int) -> None:
        self._emit = partial(rt.events.emit, run.id)
        self._step = step
        self._pieces: list[str] = []
        self._length = 0
        self._thoughts: list[str] = []
        self._thought = 0  # characters
        self._resets = 0
        self._rt, self._run = rt, run
        self.details: Mapping[str, Any] | None = None

    @cached_property
    def _first_attempt(self) -> int:
        run = self._run
        return run.resends * _RESEND + max(0, int((self._rt.now() - run.started_at).total_seconds() * 1000))

    @property
    def _attempt(self) -> int:
        return self._first_attempt + self._resets

    def add(self, text: str) -> None:
        pieces, offset, thoughts = self._pieces, self._length, self._thoughts
        pieces.append(text)
        self._length += len(text)
        self._emit(
            "model.delta", step=self._step, attempt=self._attempt, offset=offset, text=text,
            so_far=lambda end: "".join(pieces)[:end], **({"thought": lambda: "".join(thoughts)} if thoughts else {}),
        )  # fmt: skip

    def think(self, text: str) -> None:
        """Before the text: none is added behind its first piece."""
        thoughts, offset = self._thoughts, self._thought
        thoughts.append(text)
        self._thought += len(text)
        self._emit(
            "model.reasoning", step=self._step, attempt=self._attempt, offset=offset, text=text,
            so_far=lambda end: "".join(thoughts)[:end],
        )  # fmt: skip

    def reset(self) -> None:
        """The reply is begun again: watchers drop what they were shown of this step."""
        self._pieces, self._length = [], 0
        self._thoughts, self._thought = [], 0
        self._resets += 1
        self._emit("model.reset", step=self._step, attempt=self._attempt)

    def partial(self, attempts: Sequence[Attempt]) -> PartialReply:
        text, reasoning = clean_text("".join(self._pieces)), clean_text("".join(self._thoughts))
        return PartialReply(text=text, reasoning=reasoning, attempts=tuple(attempts), details=self.details)


def _ask(
    rt: Runtime, prepared: PreparedCall, work: InFlightWork, text: StreamedText
) -> tuple[Reply, PlanDecision | None]:
    work.check()
    request = prepared.request
    if request.claim.run.fork_of is not None and (repeated := forking.repeated_reply(rt, request.run)) is not None:
        return repeated, None
    if request.planning is not None:
        text.details = planning.details(request.planning)
    if request.run.resends:
        text.reset()  # the worker before us may have been killed in the middle of a text
    try:
        if prepared.planner is not None:
            return planning.ask_planner(rt, request.agent, prepared.planner, work)
        reply = rt.models.complete(
            request.agent, prepared.prompt, abort=work, on_delta=text.add, on_reset=text.reset, on_reasoning=text.think
        )
    except ModelFailed as error:
        _inform_of_failure(rt, request.session, error)
        raise
    except HandedOver:
        text.reset()
        raise
    except OutOfTime as error:
        failure = ModelFailed(str(error), fault=Fault.TIMEOUT, attempts=error.attempts)
        _inform_of_failure(rt, request.session, failure)
        raise
    return reply, None


def _inform_of_failure(rt: Runtime, session: PluginSession | None, error: ModelFailed) -> None:
    if session is not None:
        session.after_inference(error=error)
        _store_notes(rt, session)


def _record(
    rt: Runtime, request: ModelRequest, work: InFlightWork, reply: Reply, plan: PlanDecision | None
) -> list[Intent]:
    if request.recalls and reply.asks:
        ids = {ask.id for ask in clean_reply(reply).asks}
        with rt.store.read() as tx:
            request = replace(request, generations=calls.count_generations(tx, request.run.id, ids))
    outcome, under_way = transitions.judge(rt, request, reply, plan), None
    if outcome.placed is not None and outcome.placed.here:
        outcome, under_way = placing.run_first(rt, request, outcome, work.left)
    return transitions.record_reply(rt, request, outcome, under_way)
