"""Send a message over HTTP and wait for the answer, with the standard library only.

    python examples/over_http.py "What is 2 + 2?"

The dedupe key makes a repeated request safe: it finds the same turn, however the first request ended.
"""

from __future__ import annotations

import json
import sys
import uuid
from http.client import HTTPConnection
from typing import Any

SERVER = "127.0.0.1:8630"


def ask(text: str, thread_id: str | None = None) -> dict[str, Any]:
    """Return the turn when it is done. Raises ValueError with the server's reason if the message is refused."""
    fields = {"text": text, "thread_id": thread_id, "dedupe_key": str(uuid.uuid4())}
    while (turn := _post(fields)).get("status") != "done":
        pass  # accepted, and not done yet: the same key finds the turn and waits again
    return turn


def _post(fields: dict[str, Any]) -> dict[str, Any]:
    connection = HTTPConnection(SERVER, timeout=60)
    connection.request("POST", "/turns?wait=30", json.dumps(fields), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer: dict[str, Any] = json.load(response)
    connection.close()
    if response.status >= 400:
        raise ValueError(answer["detail"])
    return answer


if __name__ == "__main__":
    done = ask(" ".join(sys.argv[1:]) or "What is 2 + 2?")
    print(done["answer"] or f"no answer: {done['disposition']} ({done['code']})")
