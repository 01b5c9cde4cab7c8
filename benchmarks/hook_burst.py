"""A burst of signed webhooks against a real server: how long each waits for its answer, and that all are queued.

    python benchmarks/hook_burst.py [--database postgres] [--deliveries 1000] [--at-once 8] [--processes 1]

The database commits with fsync. No workers run: only the answers are measured. `--at-once` connections are kept open,
and each sends its next delivery when the last one is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from chordage.benchmarks.servers import running_servers
from chordage.orchestrator.core import signatures
from chordage.orchestrator.core.signatures import Form, Seal
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.workers.fleet.member import free_port

SECRET = "a secret of the benchmark"
SEAL = Seal(form=Form.GITHUB, secrets=(SECRET.encode(),), id_header=signatures.GITHUB_ID)
ROOM = {
    "agent.toml": 'name = "ada"\nmodel = "scripted:script.yaml"\n',
    "script.yaml": "- text: done\n",
    "hooks.toml": '[hooks.burst]\npath = "/hooks/burst"\nsignature = "github"\nsecret_env = "BURST_SECRET"\n',
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", help="postgres, or a URL.  [default: SQLite]")
    parser.add_argument("--deliveries", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    with running_servers(database=given.database, redis_url=None) as used:
        room = used.folder / "room"
        room.mkdir()
        for name, text in ROOM.items():
            (room / name).write_text(text)
        store = Store(used.database_url)
        schema_version.upgrade(store)
        port = free_port()
        server = serve(room, used.database_url, f"{used.redis_url}/0", port, given.processes)
        try:
            asyncio.run(until_up(port))
            for label, deliveries in (("warm-up", given.at_once * 5), ("burst", given.deliveries)):
                before = cpu_of(server.pid)
                took, seconds = asyncio.run(burst(port, label, deliveries, given.at_once))
                report(label, took, seconds, cpu_of(server.pid) - before)
        finally:
            server.terminate()
            server.wait()
        with store.read() as tx:
            stored = tx.exec_driver_sql("SELECT count(*) FROM turns").scalar()
        store.close()
        expected = given.deliveries + given.at_once * 5
        print(f"queued turns: {stored} of {expected}   ({used.kind}, {given.at_once} at once)")
        sys.exit(stored != expected)


def serve(room: Path, database: str, redis: str, port: int, processes: int) -> subprocess.Popen[bytes]:
    environ = {
        **os.environ, "BURST_SECRET": SECRET, "CHORDAGE_ROOM": str(room), "CHORDAGE_DATABASE_URL": database,
        "CHORDAGE_REDIS_URL": redis, "CHORDAGE_LOG_LEVEL": "WARNING",
    }  # fmt: skip
    command = [sys.executable, "-m", "chordage.workers.cli", "web", "--port", str(port), "--processes", str(processes)]
    return subprocess.Popen(command, env=environ, cwd=room)


async def until_up(port: int) -> None:
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise SystemExit("the server does not listen")


async def burst(port: int, label: str, deliveries: int, at_once: int) -> tuple[list[float], float]:
    requests = iter([request(label, number) for number in range(deliveries)])
    took: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(sender(port, requests, took) for _ in range(at_once)))
    return took, time.perf_counter() - began


def request(label: str, number: int) -> bytes:
    body = json.dumps({"text": f"delivery {number}", "payload": "x" * 1000}).encode()
    headers = signatures.sealed(SEAL, f"{label}-{number}", 0, body) | {"content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /hooks/burst HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode() + body


async def sender(port: int, requests: object, took: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for one in requests:  # type: ignore[attr-defined]
        began = time.perf_counter()
        writer.write(one)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-le")
        )
        await reader.readexactly(length)
        took.append(time.perf_counter() - began)
        if not head.startswith(b"HTTP/1.1 202"):
            raise SystemExit(head.decode())
    writer.close()


def cpu_of(pid: int) -> float:
    """Seconds, of the server and what it has started."""
    server = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in (server, *server.children(recursive=True)))


def report(label: str, took: list[float], seconds: float, cpu: float) -> None:
    ordered = sorted(took)
    of = {f"p{share:g}": ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] for share in (50, 95, 99, 100)}
    shown = "  ".join(f"{name} {value * 1000:6.1f} ms" for name, value in of.items())
    rate = f"{len(took):5} answered in {seconds:6.2f} s, {len(took) / seconds:6.0f}/s"
    print(f"{label:<8} {rate}   {shown}   {cpu / len(took) * 1000:.2f} ms CPU each")


if __name__ == "__main__":
    main()
