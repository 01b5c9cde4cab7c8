"""What may come next in the search box, and searches that are saved under names.

A suggestion is the whole text of the box with its last word completed, so that a plain `datalist` can offer it: the
browser brings the keys. Without a script the box works as before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated

import anyio.to_thread
from fastapi import Query, Request
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.console.forms import SentForm, sent_form
from chordage.orchestrator.console.pages import HEADERS, PageContext, back, context_of, page_router
from chordage.orchestrator.console.search import NAMES, OPEN
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import Forbidden
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.saved_views import SavedView
from chordage.orchestrator.views import TurnState

OFFERED = 12
_LAST_WORD = re.compile(r'(?:\w+:)?(?:"[^"]*"?|\S*)$')
_EXAMPLES = {"age": ("<1h", "<1d", ">7d"), "tokens": (">1k", ">10k", ">100k")}

router = page_router()
Words = Annotated[str, Query(max_length=1000)]


@router.get("/suggest")
def suggest(request: Request, q: Words = "") -> Response:
    """The options of the search box."""
    context = context_of(request, KeyScope.READ)
    offered = suggestions(q, lambda name: _values(services_of(request), context, name))
    options = Markup("").join(Markup('<option value="{}">').format(text) for text in offered)
    return HTMLResponse(options, headers=dict(HEADERS))


def suggestions(text: str, values_of: Callable[[str], Iterable[str]]) -> list[str]:
    """The text with its last word completed, in every way there is, up to a number."""
    match = _LAST_WORD.search(text)
    assert match is not None  # it fits nothing, too
    before, word = text[: match.start()], match[0]
    name, colon, begun = word.partition(":")
    if not colon:
        return [f"{before}{each}:" for each in NAMES if each.startswith(word.lower())][:OFFERED]
    begun = begun.strip('"').lower()
    fitting = [value for value in values_of(name) if begun in value.lower() and begun != value.lower()]
    fitting.sort(key=lambda value: not value.lower().startswith(begun))
    return [f"{before}{name}:{_quoted(value)}" for value in fitting][:OFFERED]


def _quoted(value: str) -> str:
    return f'"{value}"' if re.search(r"\s", value) else value


def _values(services: Services, context: PageContext, name: str) -> Iterable[str]:
    match name:
        case "status" | "is":
            return (OPEN, *(state.value for state in TurnState))
        case "group":
            return [group.value for group in Group]
        case "agent":
            agents = context.caller.agents
            return [one for one in services.rt.agents.names() if agents is None or one in agents]
        case "tool":
            return views.known_tools(services.rt.store)
        case _:
            return _EXAMPLES.get(name, ())


# Saved searches


@router.post("/views")
async def change(request: Request) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_change, request, form)


def _change(request: Request, form: SentForm) -> Response:
    """Save one, or delete one."""
    context = context_of(request, KeyScope.READ)
    services, owner = services_of(request), context.caller.id
    if form.first("delete"):
        stages.delete_view(services.rt, owner, form.first("delete"))
        return back(context, "/runs", q=form.first("q"))
    shared = bool(form.first("shared"))
    if shared and not may_share(context):
        raise Forbidden("only an operator shares a search with all")
    view = SavedView(owner=owner, name=form.first("name").strip(), query=form.first("q").strip(), shared=shared)
    stages.save_view(services.rt, view)
    return back(context, "/runs", q=view.query)


def may_share(context: PageContext) -> bool:
    return context.caller.sees_all and context.may("operate")
