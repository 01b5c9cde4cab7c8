"""Results of tool calls over HTTP, in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import FastAPI, Path, Query

from chordage.orchestrator.loops.problems import documented
from chordage.orchestrator.views import MAX_PART, ResultView

ReadResult = Callable[[str, int, int], ResultView]
CallId = Annotated[str, Path(max_length=200, pattern=r"^[0-9A-Za-z-]+$")]
Offset = Annotated[int, Query(ge=0, lt=2**31 - 1, description="The first character of the part.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PART, description="How many characters at most.")]


def add_results(app: FastAPI, result: ReadResult) -> None:
    @app.get(
        "/calls/{call_id}/result",
        summary="Read the result of a tool call",
        description="All of it is kept, also where the model was shown only the beginning. `next_offset` is where the "
        "next part begins.",
        responses=documented(403, 404, 421, 422, 500, 503),
    )
    def read_result(call_id: CallId, offset: Offset = 0, limit: Limit = 65_536) -> ResultView:
        return result(call_id, offset, limit)
