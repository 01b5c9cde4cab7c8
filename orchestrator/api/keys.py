"""Keys over HTTP: made, listed and revoked with a key of the scope `admin`.

A key of a tenant sees and makes keys of its own tenant alone; a key for some agents or groups makes no wider one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import pages, problems
from chordage.orchestrator.api.bodies import STRICT, Moment, Name
from chordage.orchestrator.api.callers import needs
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.pages import After, Limit, page_model
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.api.turns import Since
from chordage.orchestrator.core.audit import Audited, AuditEntry
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.keys import NAME_MAX, KeyTerms, within
from chordage.orchestrator.views.keys import KeyView, key_view

KeyId = Annotated[str, Path(max_length=20, pattern=r"^[0-9a-z]+$")]
Admin = Annotated[Caller, needs(KeyScope.ADMIN)]

router = json_router("keys")


class KeyBody(BaseModel):
    """What a new key may do."""

    model_config = ConfigDict(
        **STRICT, json_schema_extra={"examples": [{"name": "shop", "scopes": ["submit", "read", "payloads"]}]}
    )

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAX, description="For people.")]
    scopes: Annotated[frozenset[KeyScope], Field(min_length=1)]
    tenant: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Its turns count for it."),
    ] = None
    agents: Annotated[frozenset[Name] | None, Field(min_length=1, description="Default: all agents.")] = None
    groups: Annotated[frozenset[Group] | None, Field(min_length=1, description="Default: all groups.")] = None
    expires_at: Annotated[Moment | None, Field(description="Default: never.")] = None
    act_as: Annotated[bool, Field(strict=True, description="It may speak for users: `Chordage-User`.")] = False

    def terms(self) -> KeyTerms:
        return KeyTerms(
            name=self.name, scopes=self.scopes, tenant=self.tenant, agents=self.agents, groups=self.groups,
            expires_at=self.expires_at, act_as=self.act_as,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyPage:
    data: list[KeyView]
    next: str | None  # give it as `after` for the next page; none: this is the last


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatedKey:
    key: KeyView
    secret: str  # the key itself, shown this once


@router.post(
    "/keys",
    status_code=201,
    operation_id="create_key",
    summary="Make a key",
    response_description="Made. `secret` is the key itself; it is shown this once and stored nowhere.",
    responses=documented(400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 503),
)
def create(request: Request, body: KeyBody, caller: Admin) -> CreatedKey:
    rt = services_of(request).rt
    now = rt.now()
    new = stages.create_key(rt.store, within(body.terms(), caller), caller.actor, now)
    return CreatedKey(key=key_view(new.key, now), secret=new.text)


@router.get(
    "/keys", operation_id="list_keys", summary="List keys", responses=documented(401, 403, 404, 421, 422, 429, 500, 503)
)
def read_all(
    request: Request,
    caller: Admin,
    after: Annotated[Name | None, Query(description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> KeyPage:
    """Newest first, with those that were revoked or have expired."""
    rt = services_of(request).rt
    page = views.keys(rt.store, now=rt.now(), limit=limit, after=after, tenant=caller.tenant)
    return KeyPage(data=page, next=page[-1].id if len(page) == limit else None)


@router.delete(
    "/keys/{key_id}",
    operation_id="revoke_key",
    summary="Revoke a key",
    response_description="Revoked: within five seconds every process refuses it.",
    responses=documented(401, 403, 404, 421, 429, 500, 503),
)
def revoke(request: Request, key_id: KeyId, caller: Admin) -> KeyView:
    """Revoked once more, it stays as it is."""
    rt = services_of(request).rt
    now = rt.now()
    return key_view(stages.revoke_key(rt.store, key_id, caller.actor, now, tenant=caller.tenant), now)


@router.get(
    "/audit",
    operation_id="list_audit",
    summary="List who decided, changed keys and intervened, the newest first",
    response_model=page_model(AuditEntry, "AuditEntryPage"),
    responses=documented(*problems.OF_READS),
)
def list_audit(
    *,
    request: Request,
    caller: Annotated[Caller, needs(KeyScope.ADMIN)],
    key: Annotated[Name | None, Query(description="What this key did; or `local`, `cli`, `celery`.")] = None,
    kind: Annotated[Audited | None, Query(description="Only such entries.")] = None,
    since: Since = None,
    after: After = None,
    limit: Limit = 50,
) -> Any:
    """A key of a tenant sees what the keys of that tenant did."""
    place = pages.place_of(after, pages.moment, pages.number)
    page = views.audit_page(
        services_of(request).rt.store, limit=limit, tenant=caller.tenant, actor=key, action=kind, since=since,
        before=None if place is None else (place[0], place[1]),
    )  # fmt: skip
    return {"data": page.data, "next": page.next and pages.cursor_of(*page.next)}
