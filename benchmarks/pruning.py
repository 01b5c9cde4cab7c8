"""What turns notice of `chordage prune` while it deletes a million old ones on PostgreSQL.

    python benchmarks/pruning.py [--turns 1000000] [--seconds 60] [--at-once 2]

A fleet of its own answers turns over HTTP, first alone and then while the command deletes. Each client sends its next
turn when the last one is answered. The command is ended when the time is over.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import httpx

from chordage.benchmarks.million_turns import ROOM, fill
from chordage.benchmarks.servers import EMBEDDED, POSTGRES, running_servers
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.workers.fleet.member import free_port

COMMAND = [sys.executable, "-m", "chordage.workers.cli"]
READY_WITHIN = 180.0
HOLD = timedelta(hours=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    POSTGRES["autovacuum"] = "on"  # dead rows are part of what is measured
    with running_servers(database=EMBEDDED, redis_url=None) as used:
        room = used.folder / "room"
        room.mkdir()
        for name, content in ROOM.items():
            (room / name).write_text(content)
        store = Store(used.database_url, hold=HOLD.total_seconds())
        schema_version.upgrade(store)
        began = time.monotonic()
        fill(store, given.turns, newest=0)
        print(f"{given.turns} turns made in {time.monotonic() - began:.0f} s", flush=True)
        port = free_port()
        environment = os.environ | {
            "CHORDAGE_DATABASE_URL": used.database_url, "CHORDAGE_REDIS_URL": f"{used.redis_url}/0",
            "CHORDAGE_LOG_LEVEL": "WARNING", "CHORDAGE_ROOM": str(room),
        }  # fmt: skip
        ready = room / "ready"
        start = [*COMMAND, "run", "--port", str(port), "--ready-file", str(ready)]
        fleet = subprocess.Popen(start, env=environment, cwd=room, stdout=subprocess.DEVNULL)
        try:
            await_file(ready)
            measure(port, 10.0, given.at_once)
            report("alone", measure(port, given.seconds, given.at_once))
            left = number(store)
            prune = subprocess.Popen([*COMMAND, "prune", "--older-than", "1d"], env=environment, cwd=room)
            took = measure(port, given.seconds, given.at_once)
            is_over = prune.poll() is not None
            prune.terminate()
            prune.wait()
            report("while old turns are deleted", took)
            gone = left + len(took) - number(store)
            print(f"{gone} turns deleted in {given.seconds:.0f} s, {gone / given.seconds:.0f}/s; all: {is_over}")
            report("alone again", measure(port, given.seconds, given.at_once))
        finally:
            fleet.terminate()
            fleet.wait()
            store.close()


def await_file(file: Path) -> None:
    until = time.monotonic() + READY_WITHIN
    while not file.exists():
        if time.monotonic() > until:
            raise SystemExit(f"the fleet was not ready within {READY_WITHIN:.0f} s")
        time.sleep(0.1)


def measure(port: int, seconds: float, at_once: int) -> list[float]:
    """How long each turn took, in seconds."""
    took: list[float] = []
    until = time.monotonic() + seconds
    clients = [threading.Thread(target=_ask, args=(port, until, took)) for _ in range(at_once)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return took


def _ask(port: int, until: float, took: list[float]) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as api:
        while time.monotonic() < until:
            began = time.monotonic()
            answer = api.post("/turns", params={"wait": 30}, json={"text": "hello"})
            if answer.status_code != httpx.codes.OK:
                raise SystemExit(f"a turn was not answered: {answer.status_code} {answer.text:.300}")
            took.append(time.monotonic() - began)


def number(store: Store) -> int:
    with store.read() as tx:
        counted: int = tx.exec_driver_sql("SELECT count(*) FROM turns").scalar_one()
    return counted


def report(label: str, took: list[float]) -> None:
    cuts = statistics.quantiles(took, n=100)
    median, late, last = (1000 * value for value in (cuts[49], cuts[94], max(took)))
    print(f"{label:30} {len(took)} turns, median {median:.1f} ms, p95 {late:.1f} ms, worst {last:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
