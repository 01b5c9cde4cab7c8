"""Tools of the rig's room that ask before they do anything. What they do then is noted down as by the others."""

from __future__ import annotations

from rig_tools import carry_out, linger, note

from chordage import Context, Suspend, tool


@tool(effect="idempotent")
def asks(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Asks through its context."""
    if ctx.decision is None:
        note(ctx, "asks", "ask")
        ctx.suspend(f"May {who}?")
    return carry_out(ctx, "asks", who, seconds)


@tool(effect="idempotent")
def asks_and_lingers(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Asks, and comes back the second time only that it does what it was allowed to."""
    if ctx.decision is None:
        note(ctx, "asks_and_lingers", "ask")
        ctx.suspend(f"May {who}?")
    return linger(ctx, "asks_and_lingers", who, seconds)


@tool(effect="unsafe")
def asks_by_raising(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Asks by an exception of its own."""
    if ctx.decision is None:
        note(ctx, "asks_by_raising", "ask")
        raise Suspend(f"May {who}?", expires_in=48 * 3600)
    return carry_out(ctx, "asks_by_raising", who, seconds)


@tool(effect="pure")
def asks_at_first(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Asks in the first round of its turn only."""
    if ctx.decision is None and who.split(".")[1] == "0":
        note(ctx, "asks_at_first", "ask")
        ctx.suspend(f"May {who}?")
    return carry_out(ctx, "asks_at_first", who, seconds)
