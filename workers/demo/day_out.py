"""Four tools that pretend to ask slow services, each for a second, so that you can see them run at once; and one that
books a table, about which a person is asked where the agent's file says so.
"""

from __future__ import annotations

import time

from chordage import Context, tool


@tool(effect="pure")
def weather(ctx: Context, city: str) -> str:
    """The weather in a city tomorrow."""
    _ask_around(ctx)
    return f"Tomorrow {city} has sun and 24 degrees."


@tool(effect="pure")
def trains(ctx: Context, start: str, to: str) -> str:
    """A train from one city to another in the morning."""
    _ask_around(ctx)
    return f"The 7:30 from {start} is in {to} at 10:45."


@tool(effect="pure")
def museums(ctx: Context, city: str) -> str:
    """A museum that is open."""
    _ask_around(ctx)
    return f"The tile museum in {city} is open until 18:00."


@tool(effect="pure")
def tables(ctx: Context, city: str, people: int) -> str:
    """A restaurant with a free table in the evening."""
    _ask_around(ctx)
    return f"A table for {people} by the river in {city} is free at 19:30."


@tool(effect="idempotent")
def book_table(city: str, people: int, time: str) -> str:
    """Book a table by the river."""
    return f"Booked: a table for {people} by the river in {city} at {time}."


def _ask_around(ctx: Context, seconds: float = 1.0, steps: int = 5) -> None:
    for step in range(steps):
        ctx.progress(step / steps)
        time.sleep(seconds / steps)
