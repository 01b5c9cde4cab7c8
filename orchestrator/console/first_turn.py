"""The first message of a newcomer: one button on the empty pages, for a turn that ends with a question in the inbox.

It works where the agent has a tool about which a rule always asks a person: the message asks for that tool, and nothing
runs before the person has approved it. Where no tool asks, the button sends a plain message, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from chordage.orchestrator import views
from chordage.orchestrator.api.services import Services
from chordage.orchestrator.console.pages import PageContext
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.callers import Caller
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.plugins.permission import Permission
from chordage.orchestrator.views import TurnFilter


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstTurn:
    """`tool`: about whose call a person is asked; None: the agent has no such tool."""

    agent: str
    text: str
    tool: str | None


def first_turn(services: Services, context: PageContext) -> FirstTurn | None:
    """None: there are turns already, or no agent of this caller can be used."""
    if not context.may("submit"):
        return None
    if views.search_turns(services.rt.store, TurnFilter(), limit=1, space=context.caller.reach).turns:
        return None
    try:
        spec = services.rt.agents.get(_agent(services, context.caller))
        tools = list(services.rt.tools.specs(spec))
    except UserError:
        return None
    tool = next((name for name in tools if _asks(spec, name)), None)
    text = f"Call the tool {tool} once, with an example." if tool else "Say in two sentences what you can do."
    return FirstTurn(agent=spec.name, text=text, tool=tool)


def _agent(services: Services, caller: Caller) -> str | None:
    """None: the default."""
    if caller.agents is None:
        return None
    return next((name for name in services.rt.agents.names() if name in caller.agents), None)


def _asks(spec: AgentSpec, tool: str) -> bool:
    return any(Permission(**one.options).always_asks(tool) for one in spec.plugins if one.use == Permission.id)
