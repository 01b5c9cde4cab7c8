"""The page of one run: its rows over time, what it waits for, its answer, and what can be done about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Path, Query, Request
from fastapi.responses import Response

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.callers import as_caller
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.console.forms import SentForm, sent_form
from chordage.orchestrator.console.inbox import card_of
from chordage.orchestrator.console.live import LivePage, LiveParts, digest, streaming
from chordage.orchestrator.console.live_text import LiveText, RunWatch
from chordage.orchestrator.console.pages import PageContext, back, context_of, page_router, part, render
from chordage.orchestrator.console.timeline import RunFamily, Timeline, timeline
from chordage.orchestrator.console.why import why_of_turn
from chordage.orchestrator.core.agent import WhenBusy
from chordage.orchestrator.core.audit import Audited
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, NotFound, UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.status import RunStatus, TurnStatus
from chordage.orchestrator.core.stepping import ALLOWED, Verb
from chordage.orchestrator.core.why.reasons import WaitReason
from chordage.orchestrator.views import IdKind, TurnView
from chordage.orchestrator.views.budgets import BudgetUse, budget_uses
from chordage.orchestrator.views.processes import takeovers
from chordage.orchestrator.views.runs import InferenceStep, RunView, ToolRound
from chordage.orchestrator.views.stepped import SteppedView

SOURCE = "console"
FAMILY_MAX = 24  # runs of sub-agents that are shown inside the page of their root
LEVELS = 3
RESULT_PART = 40_000  # characters
EXTENSIONS = {
    "15 minutes": timedelta(minutes=15),
    "1 hour": timedelta(hours=1),
    "1 day": timedelta(days=1),
    "1 week": timedelta(days=7),
}
SINGLE_PARTS = frozenset({"run-names", "run-head", "run-questions", "axis", "run-end", "run-actions"})  # no rows
NOTICES = {
    "cancelled": "It is cancelled.",
    "over": "It was done already.",
    "moved": "It waits in another group now.",
    "extended": "It may wait longer now.",
    "moved-on": "It moves on.",
    "steered": "Your message is queued: the run takes it in at its next step.",
    "sent": "Your message is queued.",
    "approved": "Approved.",
    "denied": "Denied.",
    "twice": "That was decided before.",
    "forked": "It is forked: what the run that it was forked from has done is answered from its record.",
}

router = page_router()
Id = Annotated[str, Path(max_length=400)]
Offset = Annotated[int, Query(ge=0, lt=2**31)]
Word = Annotated[str, Query(max_length=20)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSight:
    """All that the page of a run shows. A turn that is queued has no run yet."""

    turn: TurnView
    run: RunView | None
    line: Timeline | None
    why: WaitReason | None
    with_idle: bool
    held: SteppedView | None = None  # of an open turn that has a consumer
    budgets: Sequence[BudgetUse] = ()
    has_children: bool = False
    draft: str = ""  # a message that was not taken

    @property
    def own_id(self) -> str:
        return self.run.run_id if self.run else self.turn.turn_id

    @property
    def is_open(self) -> bool:
        return self.turn.status is not TurnStatus.DONE or (
            self.run is not None and self.run.status is not RunStatus.DONE
        )

    @property
    def is_at_rest(self) -> bool:
        """It waits, and no sub-agent works for it."""
        return self.run is not None and self.run.status is RunStatus.WAITING and not self.has_children

    @property
    def is_queued(self) -> bool:
        return self.turn.status is TurnStatus.QUEUED and self.turn.parent_run is None

    @property
    def may_step(self) -> bool:
        return self.held is not None and self.held.standing in ALLOWED[Verb.NEXT]

    @property
    def lower_groups(self) -> list[Group]:
        return [group for group in Group if self.is_queued and group.rank > self.turn.group.rank]

    @property
    def extensions(self) -> Collection[str]:
        return EXTENSIONS


def sight_of(services: Services, context: PageContext, some_id: str, *, with_idle: bool) -> RunSight:
    """Raises NotFound for what lies outside the reach of the caller."""
    store, reach = services.rt.store, context.caller.reach
    kind, full_id = views.identify(store, some_id, space=reach)
    if kind is IdKind.THREAD:
        raise NotFound(f"{some_id} is a thread")
    run = None
    if kind is IdKind.RUN:
        run = views.run(store, full_id)
        turn = views.turn(store, run.turn_id, space=reach)
    else:
        turn = views.turn(store, full_id, space=reach)
        if turn.run_id is not None:
            run = views.run(store, turn.run_id)
    line, children = None, {}
    if run is not None:
        children = dict(_children(services, context, run, LEVELS))
        family = RunFamily(
            run=context.shown(run), queued_at=turn.queued_at, children=children,
            takeovers=takeovers(store, [run.run_id, *children]),
        )  # fmt: skip
        line = timeline(family, context.now, with_idle=with_idle)
    waits = turn.status is not TurnStatus.DONE
    return RunSight(
        turn=context.shown(turn), run=context.shown(run), line=line, with_idle=with_idle,
        has_children=bool(children), why=why_of_turn(services, context, turn.turn_id) if waits else None,
        held=views.driven(store, turn.turn_id) if waits else None,
        budgets=_budgets(services, run) if run is not None else (),
    )  # fmt: skip


def _budgets(services: Services, run: RunView) -> list[BudgetUse]:
    """As its agent's file says now; none where it cannot be read."""
    try:
        return budget_uses(services.rt.agents.get(run.agent), run.usage)
    except UserError:
        return []


def _children(services: Services, context: PageContext, run: RunView, levels: int) -> Iterator[tuple[str, RunView]]:
    """The runs of its sub-agents, and theirs. They belong to the reach of their root."""
    if not levels:
        return
    for step in run.steps:
        if not isinstance(step, ToolRound):
            continue
        for call in step.calls[:FAMILY_MAX]:
            if call.child is None or call.child.run_id is None:
                continue
            child = views.run(services.rt.store, call.child.run_id)
            yield child.run_id, context.shown(child)
            yield from _children(services, context, child, levels - 1)


def parts_of(context: PageContext, sight: RunSight, texts: Mapping[int, LiveText] | None = None) -> dict[str, str]:
    """What changes while the run is at work, in the order of the page. `texts`: of replies that are being written."""
    shown_texts = texts if texts is not None and context.may("payloads") else {}
    parts: dict[str, str] = {
        "run-names": part(context, "steps", "names", sight),
        "run-head": part(context, "steps", "head", sight),
        "run-questions": part(context, "steps", "questions", _cards(context, sight)),
        "axis": part(context, "steps", "axis", sight),
    }
    for row in sight.line.rows if sight.line else ():
        is_own = sight.run is not None and row.run_id == sight.run.run_id and row.step is not None
        text = shown_texts.get(row.step.number) if is_own and isinstance(row.step, InferenceStep) else None
        parts[row.id] = part(context, "steps", "row", row, text)
    parts["run-end"] = part(context, "steps", "end", sight)
    parts["run-actions"] = part(context, "steps", "actions", sight)
    return parts


def _cards(context: PageContext, sight: RunSight) -> list[Any]:
    return [card_of(context, question) for question in sight.turn.questions]


@router.get("/runs/{some_id}")
def show_run(request: Request, some_id: Id, idle: Word = "", done: Word = "") -> Response:
    context = context_of(request, KeyScope.READ)
    sight = sight_of(services_of(request), context, some_id, with_idle=idle == "full")
    if sight.own_id != some_id:
        return back(context, f"/runs/{sight.own_id}", done=done)
    return show_sight(request, context, sight, notice=NOTICES.get(done, ""))


def show_sight(
    request: Request, context: PageContext, sight: RunSight, *, notice: str = "", fault: str = "", status: int = 200
) -> Response:
    parts = parts_of(context, sight)
    idle = "full" if sight.with_idle else None
    return render(
        request, context, "run.html", status=status, sight=sight, parts=parts, own_id=sight.own_id, notice=notice,
        rows=[html for name, html in parts.items() if name not in SINGLE_PARTS], fault=fault,
        live=context.link(f"/runs/{sight.own_id}/live", idle=idle, v=digest(parts)) if sight.is_open else None,
    )  # fmt: skip


@router.get("/runs/{some_id}/live")
async def run_live(request: Request, some_id: Id, idle: Word = "") -> Response:
    context = await anyio.to_thread.run_sync(context_of, request, KeyScope.READ)
    services = services_of(request)

    def sight() -> RunSight:
        now = replace(context, now=services.rt.now())
        return sight_of(services, now, some_id, with_idle=idle == "full")

    def parts(watch: RunWatch) -> LiveParts:
        current = sight()
        return LiveParts(
            parts=parts_of(context, current, watch.texts), is_over=not current.is_open,
            run_id=current.run.run_id if current.run else None, is_at_rest=current.is_at_rest,
        )  # fmt: skip

    first = await anyio.to_thread.run_sync(sight)  # refused before the first byte, if it is not there
    return streaming(
        request,
        context.caller,
        LivePage(
            render=parts, key=("run", some_id, idle, context.caller, context.csrf), target="steps",
            run_id=first.run.run_id if first.run else None,
        ),
    )  # fmt: skip


@router.get("/runs/{some_id}/calls/{call_id}")
def show_result(
    request: Request, some_id: Id, call_id: Id, offset: Annotated[int, Query(ge=0, lt=2**31)] = 0
) -> Response:
    """The whole result of a call, part by part."""
    context = context_of(request, KeyScope.READ, KeyScope.PAYLOADS)
    result = services_of(request).result(call_id, offset=offset, limit=RESULT_PART, space=context.caller.reach)
    return render(request, context, "result.html", result=result, run_id=some_id)


# What can be done about it


@router.post("/runs/{some_id}/cancel")
async def cancel(request: Request, some_id: Id) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_cancel, request, some_id, form)


def _cancel(request: Request, some_id: str, form: SentForm) -> Response:
    context = context_of(request, KeyScope.OPERATE)
    services = services_of(request)
    turn = sight_of(services, context, some_id, with_idle=False).turn
    reason = form.first("reason").strip() or None
    ended, intents = stages.cancel_turn(
        services.rt, turn.turn_id, reason, space=context.caller.reach, by=context.caller.actor
    )
    services.send(intents)
    return back(context, f"/runs/{some_id}", done="cancelled" if ended else "over")


@router.post("/runs/{some_id}/steer")
async def steer(request: Request, some_id: Id) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_steer, request, some_id, form)


def _steer(request: Request, some_id: str, form: SentForm) -> Response:
    """A message to the thread that the run takes in at its next step; or a new turn, where the page said so."""
    context = context_of(request, KeyScope.OPERATE, KeyScope.SUBMIT)
    services = services_of(request)
    sight = sight_of(services, context, some_id, with_idle=False)
    text, is_new = form.first("text"), bool(form.first("new"))
    sight = replace(sight, draft=text)
    if not sight.is_open and not is_new:
        fault = "The run ended before your message came, and nothing was sent. You can send it as a new turn."
        return show_sight(request, context, sight, fault=fault, status=409)
    try:
        message = _message(services, context, sight.turn, text, when_busy=None if is_new else WhenBusy.STEER)
        admitted = services.accept(message if is_new else replace(message, audited=Audited.STEERED))
    except (InvalidMessage, Conflict) as error:
        return show_sight(request, context, sight, fault=str(error), status=422)
    if is_new:
        return back(context, f"/runs/{admitted.turn_id}", done="sent")
    return back(context, f"/runs/{some_id}", done="steered")


@router.post("/runs/{some_id}/retry")
async def retry(request: Request, some_id: Id) -> Response:
    await sent_form(request)
    return await anyio.to_thread.run_sync(_retry, request, some_id)


def _retry(request: Request, some_id: str) -> Response:
    """The same message once more, on the same thread."""
    context = context_of(request, KeyScope.OPERATE, KeyScope.SUBMIT)
    services = services_of(request)
    sight = sight_of(services, context, some_id, with_idle=False)
    if sight.is_open:
        return show_sight(request, context, sight, fault="It is not done yet: cancel it first.", status=409)
    if sight.turn.fork_of is not None:
        fault = "It is a fork, and would carry out what the fork has not: fork once more."
        return show_sight(request, context, sight, fault=fault, status=409)
    turn = views.turn(services.rt.store, sight.turn.turn_id, space=context.caller.reach)
    try:
        admitted = services.accept(replace(_message(services, context, turn, turn.text), audited=Audited.RETRIED))
    except (InvalidMessage, Conflict) as error:
        return show_sight(request, context, sight, fault=str(error), status=422)
    return back(context, f"/runs/{admitted.turn_id}", done="sent")


def _message(
    services: Services, context: PageContext, turn: TurnView, text: str, *, when_busy: WhenBusy | None = None
) -> TurnRequest:
    if turn.parent_run is not None:
        raise InvalidMessage("this is the thread of a sub-agent: send the message to its root", field="thread_id")
    return from_person(
        services, context, thread_id=turn.thread_id, text=text, agent=turn.agent, meta=turn.meta, when_busy=when_busy
    )


def from_person(
    services: Services,
    context: PageContext,
    *,
    thread_id: str | None,
    text: str,
    agent: str | None,
    meta: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
) -> TurnRequest:
    """A message from the console. A person who may reach every thread is the owner."""
    caller = context.caller
    message = Message(
        origin=Origin.INVOKE, channel=None, sender=Sender.OWNER if caller.sees_all else Sender.SERVICE,
        thread_id=thread_id, text=text, meta=meta or {},
    )  # fmt: skip
    request = TurnRequest(
        message=message, agent=agent, source=SOURCE, space=None if caller.sees_all else caller.space,
        when_busy=when_busy,
    )  # fmt: skip
    return as_caller(services, request, caller)
