"""A tool of the rig's room that lets nothing else of its process run."""

from __future__ import annotations

import ctypes

from rig_tools import note

from chordage import Context, tool


def hold_the_interpreter(seconds: float) -> None:
    """As compiled code does that does not let go of it."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@tool(effect="unsafe")
def hogs(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Keeps the interpreter to itself."""
    note(ctx, "hogs", "begin")
    hold_the_interpreter(seconds)
    note(ctx, "hogs", "end")
    return f"hogs {who}"


@tool(effect="pure")
def hogs_purely(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """The same, and it may run again."""
    note(ctx, "hogs_purely", "begin")
    hold_the_interpreter(seconds)
    note(ctx, "hogs_purely", "end")
    return f"hogs {who}"
