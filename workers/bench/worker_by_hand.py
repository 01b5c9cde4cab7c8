"""Starts a worker of a hand-written contender: `python -m chordage.workers.bench.worker_by_hand ARGUMENTS-AS-JSON`."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from celery import Celery, signals

from chordage.workers.bench import chord_by_hand
from chordage.workers.bench.shape import Shape

REDIS, DATABASE = "CHORDAGE_BENCH_REDIS", "CHORDAGE_BENCH_DATABASE"  # addresses, in the environment


def app_of(redis_url: str, shape: Shape, database_url: str | None) -> Celery:
    if database_url is None:
        return chord_by_hand.make_app(redis_url, shape)
    from chordage.workers.bench import chord_with_rows

    return chord_with_rows.make_app(redis_url, shape, database_url)


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    ready_file = Path(sys.argv[sys.argv.index("--ready-file") + 1])
    app = app_of(os.environ[REDIS], Shape(**given["shape"]), os.environ.get(DATABASE))

    @signals.worker_ready.connect(weak=False)
    def ready(**_: Any) -> None:
        ready_file.write_text(f"{os.getpid()}\n")

    worker = app.Worker(
        hostname=f"{given['name']}@{socket.gethostname()}",
        pool_cls=given["pool"],
        concurrency=given["concurrency"],
        loglevel="WARNING",
        quiet=True,
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
    )
    worker.start()
    sys.exit(worker.exitcode)


if __name__ == "__main__":
    main()
