"""The base of every ratio: the turn as a Celery user writes it, with a chord per round and nothing stored but
results.

The history is part of the messages. A worker that dies loses at most what redelivery cannot bring back; what became
of a turn cannot be looked up.

`python -m chordage.benchmarks.chord_by_hand OPTIONS-AS-JSON --ready-file FILE` starts a worker.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery, Task, chord, signals

from chordage.benchmarks.workload import RESULT_BYTES, TurnShape

REDIS, DATABASE = "BENCH_REDIS_URL", "BENCH_DATABASE_URL"  # environment variables
Messages = list[dict[str, Any]]
RESULT = {"filling": "x" * RESULT_BYTES}


def make_app(redis_url: str, shape: TurnShape) -> Celery:
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


def _register(app: Celery, shape: TurnShape) -> None:
    @app.task(name="by_hand.start", bind=True)
    def start(self: Task[Any, Any], messages: Messages) -> str:
        return _step(self, messages, 0)

    @app.task(name="by_hand.tool")
    def tool(call: dict[str, Any]) -> dict[str, Any]:
        time.sleep(shape.tool_delay) if shape.tool_delay else None
        return {"role": "tool", "call": call["id"], "content": RESULT}

    @app.task(name="by_hand.collect", bind=True)
    def collect(self: Task[Any, Any], results: Messages, messages: Messages, rounds: int) -> str:
        return _step(self, [*messages, *results], rounds)

    def _step(task: Task[Any, Any], messages: Messages, rounds: int) -> str:
        reply = model(shape, rounds)
        if not reply["calls"]:
            return str(reply["text"])
        header = [tool.s(call) for call in reply["calls"]]
        raise task.replace(chord(header, collect.s([*messages, reply], rounds + 1)))


def model(shape: TurnShape, rounds: int) -> dict[str, Any]:
    time.sleep(shape.model_delay) if shape.model_delay else None
    if rounds >= shape.rounds:
        return {"role": "assistant", "text": "Here it is.", "calls": []}
    calls = [
        {"id": f"call_{rounds}_{number}", "name": "look_up", "arguments": {"key": f"key {number}"}}
        for number in range(shape.calls)
    ]
    return {"role": "assistant", "text": "", "calls": calls}


def run_worker(make: Callable[[str, TurnShape], Celery]) -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    ready_file = Path(sys.argv[sys.argv.index("--ready-file") + 1])
    app = make(os.environ[REDIS], TurnShape(**options["shape"]))

    @signals.worker_ready.connect(weak=False)
    def ready(**_: Any) -> None:
        ready_file.write_text(f"{os.getpid()}\n")

    worker = app.Worker(
        hostname=f"{options['name']}@{socket.gethostname()}",
        pool_cls=options["pool"],
        concurrency=options["concurrency"],
        loglevel="WARNING",
        quiet=True,
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
    )
    worker.start()
    sys.exit(worker.exitcode)


if __name__ == "__main__":
    run_worker(make_app)
