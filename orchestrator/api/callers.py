"""Who a request comes from, and whether that caller may do what it asks for.

Every endpoint names the scopes that it needs: `caller: Annotated[Caller, needs(KeyScope.READ)]`. What the caller
reaches is not a matter of scopes: views take `caller.reach`, messages go to `caller.space`, and what lies outside is
not found. Messages pass `as_caller` and decisions `decide_as`, whichever protocol brings them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Depends, FastAPI, Request

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import problems
from chordage.orchestrator.api.authentication import sent_key
from chordage.orchestrator.api.guards import RATES, check_parameters, headers_of, size_of
from chordage.orchestrator.api.services import SOURCE, Services, services_of
from chordage.orchestrator.core import rates
from chordage.orchestrator.core.approvals import DecisionRequest
from chordage.orchestrator.core.callers import LOCAL, Caller, KeyScope
from chordage.orchestrator.core.errors import Forbidden, NotFound, Unauthenticated
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.hosts import is_loopback
from chordage.orchestrator.core.keys import PREFIX as KEY_PREFIX
from chordage.orchestrator.core.message import TurnRequest, group_of, placed
from chordage.orchestrator.core.rates import Allowance
from chordage.orchestrator.loops.server import PEER
from chordage.orchestrator.run.approvals import Decided

USER = "chordage-user"  # the header that names for whom a caller speaks
TRACEPARENT = "traceparent"  # the header with the span of the caller


def needs(*scopes: KeyScope) -> Any:
    """A dependency: the caller, if it has all these scopes and its rate allows the request. Without any scope: a caller
    that is known.
    """

    def check(request: Request) -> Caller:
        return _known_with(request, scopes)

    return Depends(check)


def _known_with(request: Request, scopes: Collection[KeyScope]) -> Caller:
    return _with_scopes(request, *known_caller(services_of(request), request.scope), scopes)


def needs_or_ticket(*scopes: KeyScope) -> Any:
    """As `needs`, for a stream: `?ticket=` may be in the place of a key."""

    def check(request: Request) -> Caller:
        ticket = request.query_params.get("ticket")
        caller, allowances = (
            known_caller(services_of(request), request.scope)
            if ticket is None
            else _holder(services_of(request), ticket, request.scope["path"], _address(request))
        )
        return _with_scopes(request, caller, allowances, scopes)

    return Depends(check)


def needs_whole_fleet(*scopes: KeyScope) -> Any:
    """As `needs`, for what belongs to no thread. A key of a tenant does not see what the others share."""

    def check(request: Request) -> Caller:
        return known_for_fleet(request, *scopes)

    return Depends(check)


def known_for_fleet(request: Request, *scopes: KeyScope) -> Caller:
    """What `needs_whole_fleet` does, where another credential may take the place of a key."""
    caller = _known_with(request, scopes)
    if caller.tenant is not None and not caller.sees_all:
        raise Forbidden(f"{caller.label} is one of tenant {caller.tenant!r}, and this is of the whole fleet")
    if caller.user is not None:
        raise Forbidden(f"{caller.label} speaks for user {caller.user!r}, and this is of the whole fleet")
    return caller


def known_caller(services: Services, scope: Mapping[str, Any]) -> tuple[Caller, Sequence[Allowance]]:
    """Who sends a request with this ASGI scope, and what is left of its rates. Raises Unauthenticated, Forbidden,
    TooManyRequests. It may ask the database and Redis: call it in a thread.
    """
    headers, address = headers_of(scope), scope["client"][0] if scope.get("client") else None
    if is_of_proxy(services, scope) and not (sent_key(headers) or "").startswith(KEY_PREFIX):
        assert services.proxy is not None
        caller = services.proxy.caller(headers)
    else:
        caller = services.authenticate(headers)
        _check_local(caller, address)
    if (user := headers.get(USER)) is not None:
        caller = caller.acting_as(user)
    known = replace(caller, address=address, traceparent=headers.get(TRACEPARENT))
    return known, services.limits.take(caller, size_of(scope, headers))


def is_of_proxy(services: Services, scope: Mapping[str, Any]) -> bool:
    """Whether a proxy sent it that names people."""
    return services.proxy is not None and services.proxy.sent(scope.get(PEER))


def _holder(services: Services, ticket: str, path: str, address: str | None) -> tuple[Caller, Sequence[Allowance]]:
    """Who made the ticket, as it is known now: a key that was revoked meanwhile opens nothing."""
    holder = stages.take_ticket(services.rt.store, ticket, path, services.rt.now())
    caller = None if holder is None or services.caller_of is None else services.caller_of(holder.caller)
    if holder is None or caller is None:
        raise Unauthenticated("the ticket was used, has expired, or is for another path: make one for each request")
    _check_local(caller, address)
    if holder.user is not None:
        caller = caller.acting_as(holder.user)
    return replace(caller, address=address), services.limits.take(caller)


def _check_local(caller: Caller, address: str | None) -> None:
    if caller.id == LOCAL.id and address is not None and not is_loopback(address):
        raise Unauthenticated(f"a request from {address} needs a key: only programs of this machine send none")


def _with_scopes(
    request: Request, caller: Caller, allowances: Sequence[Allowance], scopes: Collection[KeyScope]
) -> Caller:
    request.scope[problems.CALLER] = caller
    request.scope[RATES] = rates.headers_of(allowances)
    for scope in scopes:
        if scope not in caller.scopes:
            raise Forbidden(f"{caller.label} does not have the scope {scope.value!r}", scope=scope.value)
    check_parameters(request)
    return caller


def _address(request: Request) -> str | None:
    return request.client.host if request.client else None


def require(caller: Caller, scope: KeyScope, what: str) -> None:
    """For a scope that only some requests of an endpoint need."""
    if scope not in caller.scopes:
        raise Forbidden(f"{what} needs the scope {scope.value!r}, and {caller.label} lacks it", scope=scope.value)


def as_caller(services: Services, request: TurnRequest, caller: Caller) -> TurnRequest:
    """The request, with who sends it. Raises Forbidden for an agent or a group that the key is not for, and for
    decisions that it may not make. Its tenant follows from its space (core/message.py). It may ask the database.
    """
    if caller.agents is not None:  # before the room is asked: it would tell which agents there are
        _allow_agents(caller, {request.agent or services.rt.agents.get(None).name})
    allow_group(caller, group_of(request))
    if request.decisions:
        allow_decisions(services, request.decisions, caller)
    return replace(request, by=caller.actor, traceparent=caller.traceparent)


def thread_of(services: Services, caller: Caller, name: str) -> str:
    """The id of the thread that a filter names, by its id or by the name that the caller gave it. Of a thread that is
    not there, the id that it would have: a list of what is on it is empty.
    """
    try:
        return views.thread_named(services.rt.store, name, space=caller.reach, own=caller.space)
    except NotFound:
        return placed(caller.space, name)


def allow_group(caller: Caller, group: Group) -> None:
    if caller.groups is not None and group not in caller.groups:
        raise Forbidden(f"{caller.label} may not use group {group.value!r}; it may: {_listed(caller.groups)}")


def decide_as(
    services: Services, requests: Sequence[DecisionRequest], caller: Caller, *, source: str = SOURCE
) -> list[Decided]:
    """Store decisions of this caller, all or none."""
    allow_decisions(services, requests, caller)
    return services.decide(requests, source=source, space=caller.reach, by=caller.actor)


def describe_keys(app: FastAPI) -> None:
    """How to send a key, in the description of the API. Not required there: a server on loopback wants none."""
    describe = app.openapi

    def with_keys() -> dict[str, Any]:
        description = describe()
        description.setdefault("components", {})["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "ck_…"},
            "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        }
        description["security"] = [{"bearer": []}, {"header": []}, {}]
        return description

    app.openapi = with_keys  # type: ignore[method-assign]  # FastAPI's own way to extend it


def allow_decisions(services: Services, requests: Sequence[DecisionRequest], caller: Caller) -> None:
    """The result of a tool that the caller brought is part of its turn: it needs no scope but that of the turn."""
    targets = [request.target for request in requests]
    is_of_turn = KeyScope.SUBMIT in caller.scopes and KeyScope.DECIDE not in caller.scopes
    if not (is_of_turn and views.are_for_callers(services.rt.store, targets)):
        require(caller, KeyScope.DECIDE, "a decision")
    if caller.agents is not None:
        _allow_agents(caller, views.agents_asking(services.rt.store, targets, space=caller.reach))


def _allow_agents(caller: Caller, agents: set[str]) -> None:
    assert caller.agents is not None
    for agent in sorted(agents - caller.agents):
        raise Forbidden(f"{caller.label} may not address agent {agent!r}; it may: {_listed(caller.agents)}")


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"
