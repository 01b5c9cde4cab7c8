"""A tool with which the model reads on where it was given only the beginning of a result."""

from __future__ import annotations

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.declare import tool
from chordage.orchestrator.gateways.tools.results import READER

LONGEST = 20_000  # characters of one part


@tool(name=READER, effect=Effect.PURE, timeout=30, result_limit=LONGEST + 500)
def read_result(call: str, ctx: Context, offset: int = 0, length: int = LONGEST) -> str:
    """Read a part of the result of an earlier tool call in this conversation, of which you were shown the beginning.

    Args:
        call: as the note below that beginning has it, with or without `call:`
        ctx: of this call
        offset: the first character to read; the first of the result is 0
        length: how many characters to read, at most 20000

    """
    if offset < 0 or not 1 <= length <= LONGEST:
        raise ValueError(f"offset must be 0 or more, and length 1 to {LONGEST}; got {offset} and {length}")
    if ctx.results is None:
        raise NotFound("no results are kept here: this works only in a call that a run has made")
    part = ctx.results.part(call.removeprefix("call:"), offset, length)
    end = offset + len(part.text)
    more = f"; read on from offset {end}" if end < part.total else "; this is the end"
    return f"[Characters {offset} to {end} of {part.total}{more}]\n{part.text}"
