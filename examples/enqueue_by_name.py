"""Send a message to a fleet from any service that has Celery, without importing chordage.

    python examples/enqueue_by_name.py redis://localhost:6379/0 "What is 2 + 2?"

`chordage dev` prints the address of its Redis. The result of `turns.submit` is the id of the turn; leave the backend
out if you do not need it. The message is JSON. The prefix is the fleet's setting CHORDAGE_BROKER_PREFIX, which
separates the fleet from other Celery apps on the same Redis.
"""

from __future__ import annotations

import sys

from celery import Celery

PREFIX = "chordage:celery:"


def submit(redis_url: str, text: str, thread_id: str | None = None) -> str:
    """Return the id of the turn once it is stored. Raises the fleet's reason if the message is refused."""
    app = Celery("shop", broker=redis_url, backend=redis_url)
    app.conf.broker_transport_options = app.conf.result_backend_transport_options = {"global_keyprefix": PREFIX}
    fields = {"text": text, "thread_id": thread_id, "meta": {"service": "shop"}}
    result = app.send_task("turns.submit", kwargs=fields, queue="chat")
    return str(result.get(timeout=30))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} REDIS_URL TEXT")
    print(submit(sys.argv[1], sys.argv[2]))
