"""Where work comes from besides callers, over HTTP: polled channels, webhooks, tasks and chores of the room."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request, Response

from chordage.orchestrator import views
from chordage.orchestrator.api import problems
from chordage.orchestrator.api.callers import needs_whole_fleet
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.pages import page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import address, services_of
from chordage.orchestrator.api.shown import model_of, show, show_all
from chordage.orchestrator.api.turns import Receipt
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.loops import pulse
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.views.channels import ChannelView
from chordage.orchestrator.views.hooks import HookView
from chordage.orchestrator.views.pulse import StandingItem, StandingWork

ItemName = Annotated[
    str, Path(min_length=1, max_length=300, pattern=r"^[^\x00/]+$", description="As it is listed: `chore:water`.")
]

router = json_router("sources")


@router.get(
    "/channels",
    operation_id="list_channels",
    summary="List the polled channels: how far each was read, and what is wrong with it",
    response_model=page_model(model_of(ChannelView), "ChannelPage"),
    responses=documented(*problems.OF_READS),
)
def list_channels(
    request: Request,
    caller: Annotated[Caller, needs_whole_fleet(KeyScope.READ)],
    refusals: Annotated[int, Query(ge=0, le=100, description="Refused messages of each, the newest.")] = 5,
) -> Any:
    """All on one page."""
    rt = services_of(request).rt
    listed = views.channels(rt.store, rt.channels, rt.agents, rt.now(), refusals=refusals)
    return {"data": show_all(listed, caller), "next": None}


@router.get(
    "/hooks",
    operation_id="list_hooks",
    summary="List the webhooks with the counts of their deliveries",
    response_model=page_model(HookView, "HookPage"),
    responses=documented(*problems.OF_READS),
)
def list_hooks(request: Request, caller: Annotated[Caller, needs_whole_fleet(KeyScope.READ)]) -> Any:
    """All on one page. Secrets are not shown."""
    return {"data": show_all(services_of(request).hooks(), caller), "next": None}


@router.get(
    "/pulse",
    operation_id="read_pulse",
    summary="Read the tasks, chores and the will of the room: what is next, and how the last turn ended",
    response_model=model_of(StandingWork),
    responses=documented(*problems.OF_READS),
)
def read_pulse(request: Request, caller: Annotated[Caller, needs_whole_fleet(KeyScope.READ)]) -> Any:
    """`faults` names the files that cannot be read, for a caller that operates the fleet."""
    rt = services_of(request).rt
    standing = StandingWork(items=[], faults=[]) if rt.work is None else views.standing_now(rt.store, rt.work)
    return show(standing, caller)


@router.post(
    "/pulse/{name}/run",
    status_code=202,
    operation_id="run_work_now",
    summary="Run a task, a chore or the will now",
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def run_now(
    request: Request,
    response: Response,
    name: ItemName,
    caller: Annotated[Caller, needs_whole_fleet(KeyScope.OPERATE)],
) -> Receipt:
    """Its schedule stays as it is."""
    admitted, intents = pulse.run_now(_with_room(request, name), name, by=caller.actor)
    services_of(request).send(intents)
    response.headers["Location"] = address(request, f"/pulse/{name}/run", f"/turns/{admitted.turn_id}")
    return Receipt(turn_id=admitted.turn_id, thread_id=admitted.thread_id, duplicate=admitted.duplicate)


@router.post(
    "/pulse/{name}/pause",
    operation_id="pause_work",
    summary="Pause a task, a chore or the will",
    response_model=model_of(StandingItem),
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def pause(request: Request, name: ItemName, caller: Annotated[Caller, needs_whole_fleet(KeyScope.OPERATE)]) -> Any:
    """Until it is resumed, whatever its file says. Once more: nothing changes."""
    rt = _with_room(request, name)
    pulse.pause(rt, name, caller.actor)
    return show(_standing(rt, name), caller)


@router.post(
    "/pulse/{name}/resume",
    operation_id="resume_work",
    summary="Resume a task, a chore or the will that a person paused",
    response_model=model_of(StandingItem),
    responses=documented(*problems.OF_WRITES, 404, 409),
)
def resume(request: Request, name: ItemName, caller: Annotated[Caller, needs_whole_fleet(KeyScope.OPERATE)]) -> Any:
    """Times inside the pause are missed; a task that was changed meanwhile gets its turn. 409: its file pauses it."""
    rt = _with_room(request, name)
    services_of(request).send(pulse.resume(rt, name, caller.actor))
    return show(_standing(rt, name), caller)


def _with_room(request: Request, name: str) -> Runtime:
    rt = services_of(request).rt
    if rt.work is None:
        raise NotFound(f"there is no task, chore or will {name!r}: this server has no room")
    return rt


def _standing(rt: Runtime, name: str) -> StandingItem:
    assert rt.work is not None
    items = views.standing_now(rt.store, rt.work).items
    named = next((item for item in items if name in {item.name, item.path}), None)
    return named or next(item for item in items if item.name is not None and item.name.partition(":")[2] == name)
