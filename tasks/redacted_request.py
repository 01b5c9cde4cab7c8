"""What monitors show of a message that others have sent: their Celery shows all arguments, texts included.

Celery looks this module up in workers alone: it imports all of a worker.
"""

from __future__ import annotations

from celery.worker.request import Request

from chordage.orchestrator.core import message

# By the name of the argument. Texts, payloads and reasons are not among them.
SHOWN = {"thread_id": "thread", "thread": "thread", "agent": "agent", "turn": "turn", "verb": "verb"}
LONGEST = 200  # characters: the message is not validated yet


class RedactedRequest(Request):
    @property
    def argsrepr(self) -> str:
        return ""

    @property
    def kwargsrepr(self) -> str:
        shown = {
            name: self.kwargs[key][:LONGEST] for key, name in SHOWN.items() if isinstance(self.kwargs.get(key), str)
        }
        if "thread" in shown:
            shown["thread"] = message.placed(message.CALLERS, shown["thread"])  # the name that it has in our logs
        return repr(shown)
