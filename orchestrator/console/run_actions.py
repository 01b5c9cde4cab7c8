"""What can be done about a turn besides ending it: another group or deadline while it is queued, a step of a held run,
and its record as a file.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import anyio.to_thread
from fastapi import Request
from fastapi.responses import Response
from pydantic import TypeAdapter

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.callers import allow_group
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.api.shown import model_of, show
from chordage.orchestrator.console.forms import SentForm, sent_form
from chordage.orchestrator.console.pages import HEADERS, PageContext, back, context_of, page_router
from chordage.orchestrator.console.run_page import EXTENSIONS, Id, RunSight, show_sight, sight_of
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import Conflict, Forbidden, InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.records import Turn
from chordage.orchestrator.core.stepping import StepRequest, Verb

EXPORT: TypeAdapter[Any] = TypeAdapter(model_of(views.RunExport))

router = page_router()


@router.post("/runs/{some_id}/group")
async def change_group(request: Request, some_id: Id) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_change_group, request, some_id, form)


def _change_group(request: Request, some_id: str, form: SentForm) -> Response:
    def change(services: Services, context: PageContext, sight: RunSight) -> None:
        wanted = form.first("group")
        if wanted not in set(Group):
            raise InvalidMessage(f"choose a group: {', '.join(Group)}", field="group")
        allow_group(context.caller, Group(wanted))
        intents = stages.change_queued_turn(
            services.rt, sight.turn.turn_id, by=context.caller.actor, group=Group(wanted), space=context.caller.reach
        )
        services.send(intents)

    return _changed(request, some_id, change, done="moved")


@router.post("/runs/{some_id}/deadline")
async def extend_deadline(request: Request, some_id: Id) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_extend_deadline, request, some_id, form)


def _extend_deadline(request: Request, some_id: str, form: SentForm) -> Response:
    """By a span, from the deadline that the page showed: the same form sent twice extends it once."""

    def extend(services: Services, context: PageContext, sight: RunSight) -> None:
        was, deadline = _moment(form.first("was")), None
        if was is not None and form.first("by") in EXTENSIONS:
            deadline = _later(was, EXTENSIONS[form.first("by")])
        if deadline is None:
            raise InvalidMessage(f"choose how much longer it may wait: {', '.join(EXTENSIONS)}", field="by")

        def check(turn: Turn) -> None:
            if turn.deadline != was:
                raise Conflict("its deadline was changed since this page was loaded: look at it again")

        stages.change_queued_turn(
            services.rt, sight.turn.turn_id, by=context.caller.actor, deadline=deadline, space=context.caller.reach,
            check=check,
        )  # fmt: skip

    return _changed(request, some_id, extend, done="extended")


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _later(moment: datetime, span: timedelta) -> datetime | None:
    """None: behind the year 9999."""
    try:
        return moment + span
    except OverflowError:
        return None


@router.get("/runs/{some_id}/export")
def export(request: Request, some_id: Id) -> Response:
    """As `GET /runs/{run_id}/export` of the API gives it to this caller."""
    context = context_of(request, KeyScope.READ)
    document = views.export(services_of(request).rt.store, some_id, space=context.caller.reach)
    name = f"run-{document.root.run.run_id}.json"
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    shown = EXPORT.dump_json(EXPORT.validate_python(show(document, context.caller)))
    return Response(shown, media_type="application/json", headers=headers)


@router.post("/runs/{some_id}/step")
async def step(request: Request, some_id: Id) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_step, request, some_id, form)


def _step(request: Request, some_id: str, form: SentForm) -> Response:
    """Move a held run on as its consumer would, unless that one has moved it since the page was loaded."""

    def move(services: Services, context: PageContext, sight: RunSight) -> None:
        verb, rev = form.first("verb"), form.first("rev")
        if verb not in {Verb.NEXT, Verb.RUN} or not (rev.isdecimal() and len(rev) < 10):
            raise InvalidMessage("choose to make the next step, or to let it run to its end", field="verb")
        order = StepRequest(
            target=sight.turn.turn_id,
            verb=Verb(verb),
            if_rev=int(rev),
            space=context.caller.reach,
            by=context.caller.actor,
        )
        services.step(order)

    return _changed(request, some_id, move, done="moved-on", scopes=(KeyScope.SUBMIT,))


def _changed(
    request: Request,
    some_id: str,
    change: Callable[[Services, PageContext, RunSight], None],
    *,
    done: str,
    scopes: tuple[KeyScope, ...] = (),
) -> Response:
    """The page again: changed, or as it was with the reason why not."""
    context = context_of(request, KeyScope.OPERATE, *scopes)
    services = services_of(request)
    sight = sight_of(services, context, some_id, with_idle=False)
    try:
        change(services, context, sight)
    except (Conflict, InvalidMessage, Forbidden) as error:
        now = sight_of(services, context, some_id, with_idle=False)
        status = {InvalidMessage: 422, Forbidden: 403}.get(type(error), 409)
        return show_sight(request, context, now, fault=f"Nothing was changed: {error}.", status=status)
    return back(context, f"/runs/{some_id}", done=done)
