"""What a stream of unnamed server-sent events says, and whether it is framed as its clients want it."""

from __future__ import annotations

import json
from typing import Any

import httpx

DONE = "[DONE]"


def events_in(response: httpx.Response) -> list[Any]:
    """The data of each event; `[DONE]` as it is."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "\r" not in response.text, "one of the clients finds no event in a stream with CRLF"
    frames = [frame for frame in response.text.split("\n\n") if frame and not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [data if (data := frame.removeprefix("data: ")) == DONE else json.loads(data) for frame in frames]
