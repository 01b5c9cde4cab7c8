"""Send a message over HTTP and wait for the answer.

    python examples/over_http.py "What is 2 + 2?"

CHORDAGE_URL and CHORDAGE_KEY say where the server is and who asks; the default is a server on this machine.
"""

from __future__ import annotations

import sys

import chordage


def ask(text: str, thread: str | None = None) -> str:
    """The answer, or why there is none. Raises `chordage.UserError` if the message is refused."""
    with chordage.Client() as client:
        turn = client.ask(text, thread=thread)
    if turn.is_waiting:
        return f"waits for a decision: {turn.questions[0].prompt}"
    return turn.answer or f"no answer: {turn.disposition} ({turn.code})"


if __name__ == "__main__":
    print(ask(" ".join(sys.argv[1:]) or "What is 2 + 2?"))
