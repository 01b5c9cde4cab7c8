"""The base of every ratio: the turn as a Celery user writes it, with a chord per round and nothing stored but
results.

The history rides in the messages. A worker that dies loses at most what redelivery cannot bring back; nobody can
look up what became of a turn.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Celery, Task, chord

from chordage.workers.bench.shape import RESULT_BYTES, Shape

Said = list[dict[str, Any]]
RESULT = {"filling": "x" * RESULT_BYTES}


def make_app(redis_url: str, shape: Shape) -> Celery:
    app = Celery("by_hand", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        task_default_queue="by_hand",
        broker_connection_retry_on_startup=True,
        redis_max_connections=400,
        worker_hijack_root_logger=False,
    )
    app.set_default()
    _register(app, shape)
    return app


def _register(app: Celery, shape: Shape) -> None:
    @app.task(name="by_hand.start", bind=True)
    def start(self: Task[Any, Any], messages: Said) -> str:
        return _step(self, messages, 0)

    @app.task(name="by_hand.tool")
    def tool(call: dict[str, Any]) -> dict[str, Any]:
        time.sleep(shape.tool_delay) if shape.tool_delay else None
        return {"role": "tool", "call": call["id"], "content": RESULT}

    @app.task(name="by_hand.collect", bind=True)
    def collect(self: Task[Any, Any], results: Said, messages: Said, rounds: int) -> str:
        return _step(self, [*messages, *results], rounds)

    def _step(task: Task[Any, Any], messages: Said, rounds: int) -> str:
        reply = model(shape, rounds)
        if not reply["calls"]:
            return str(reply["text"])
        header = [tool.s(call) for call in reply["calls"]]
        raise task.replace(chord(header, collect.s([*messages, reply], rounds + 1)))


def model(shape: Shape, rounds: int) -> dict[str, Any]:
    time.sleep(shape.model_delay) if shape.model_delay else None
    if rounds >= shape.rounds:
        return {"role": "assistant", "text": "Here it is.", "calls": []}
    calls = [
        {"id": f"call_{rounds}_{number}", "name": "look_up", "arguments": {"key": f"key {number}"}}
        for number in range(shape.calls)
    ]
    return {"role": "assistant", "text": "", "calls": calls}
