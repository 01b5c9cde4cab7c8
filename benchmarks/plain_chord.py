"""The base of every ratio: the turn as a Celery chord, and nothing else. Nothing is stored but the results that a chord
counts.

The history is part of the messages. A worker that dies loses at most what redelivery brings back; what became of a turn
cannot be looked up, no turn waits for another on its thread, and there is no budget.

`python -m chordage.benchmarks.plain_chord OPTIONS-AS-JSON --ready-file FILE` starts a worker.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from celery import Celery, chord, signals
from redis import Redis

from chordage.benchmarks.workload import REMARK, RESULT_BYTES, TurnShape

REDIS = "BENCH_REDIS_URL"  # environment variable
ENDS = "chord:done:"  # and the name of the turn: the channel on which its end is published
TURN = "chord.turn"
Messages = list[dict[str, Any]]
RESULT = {"filling": "x" * RESULT_BYTES}


def make_app(redis_url: str) -> Celery:
    app = Celery("chord", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_default_queue="chord",
        broker_connection_retry_on_startup=True,
        redis_max_connections=400,
        result_expires=600,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
    )
    app.set_default()
    return app


def register(app: Celery, shape: TurnShape, client: Redis) -> None:
    @app.task(name=TURN, ignore_result=True)
    def turn(name: str, question: str) -> None:
        step(name, [{"role": "user", "text": question}], 0)

    @app.task(name="chord.tool")
    def tool(call: dict[str, Any]) -> dict[str, Any]:
        time.sleep(shape.tool_delay) if shape.tool_delay else None
        return {"role": "tool", "call": call["id"], "content": RESULT}

    @app.task(name="chord.join", ignore_result=True)
    def join(results: Messages, name: str, messages: Messages, rounds: int) -> None:
        step(name, [*messages, *results], rounds)

    def step(name: str, messages: Messages, rounds: int) -> None:
        reply = model(shape, rounds)
        if reply["calls"]:
            chord([tool.s(call) for call in reply["calls"]])(join.s(name, [*messages, reply], rounds + 1))
        else:
            client.publish(ENDS + name, reply["text"])


def model(shape: TurnShape, rounds: int) -> dict[str, Any]:
    time.sleep(shape.model_delay) if shape.model_delay else None
    if rounds >= shape.rounds:
        return {"role": "assistant", "text": REMARK, "calls": []}
    calls = [
        {"id": f"call_{rounds}_{number}", "name": "look_up", "arguments": {"key": f"key {number}"}}
        for number in range(shape.calls)
    ]
    return {"role": "assistant", "text": "", "calls": calls}


def run_worker() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    ready_file = Path(sys.argv[sys.argv.index("--ready-file") + 1])
    url = os.environ[REDIS]
    app = make_app(url)
    register(app, TurnShape(**options["shape"]), Redis.from_url(url))

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
    run_worker()
