"""Many followers of one web process, and one among them that reads nothing.

`FOLLOWERS=500 pytest -s tests/live/faults/test_many_followers.py` prints what each of them costs.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import psutil
import pytest

from support import processes
from support.following import Reader, read_on
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

FOLLOWERS = int(os.environ.get("FOLLOWERS", "60"))
WORDS = " ".join(f"word{number}" for number in range(80))
SCRIPT = f'replies:\n  - {{text: "{WORDS}", latency: 1, pace: 0.05, chunk: 7}}\n'
LONG = "x" * 3_000_000
LONG_SCRIPT = f"""
def reply(prompt, attempt):
    return {{"text": "x" * {len(LONG)}, "latency": 2, "pace": 0.02, "chunk": 20000}}
"""


@pytest.fixture
def rig(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"))
    rig.agent("teller", "scripted:teller.yaml", SCRIPT)
    rig.agent("talker", "scripted:talker.py", LONG_SCRIPT)
    rig.worker("a", "--role", "all", "--concurrency", "4")
    rig.ready()
    return rig


@contextmanager
def web(rig, folder):
    """Its process, and its address."""
    said = folder / "said"
    command = [sys.executable, "-m", "chordage.workers.cli", "web", "--port", "0"]
    process = processes.spawn(command, said, env=rig.env, cwd=folder)
    try:
        until(lambda: "HTTP on" in said.read_text(), "it has a port")
        port = int(re.search(r"HTTP on http://127\.0\.0\.1:(\d+)", said.read_text())[1])
        until(lambda: _answers(port), "it answers")
        yield psutil.Process(process.pid), port
        assert "Traceback" not in said.read_text()
    finally:
        processes.stop(process)


def _answers(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx.TransportError:
        return False


def _is_done(port, turn_id):
    return httpx.get(f"http://127.0.0.1:{port}/turns/{turn_id}").json()["status"] == "done"


def submitted(port, agent="teller"):
    message = {"text": "tell", "agent": agent}
    return httpx.post(f"http://127.0.0.1:{port}/turns", json=message, timeout=90).json()["turn_id"]


async def opened(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 90)
    return reader, writer


async def read_to_the_end(reader):
    """How much came, and the text as it was shown."""
    came = await asyncio.wait_for(reader.read(), 120)
    return len(came), b"turn.ended" in came


def used(process):
    times = process.cpu_times()
    return process.memory_info().rss, times.user + times.system


def test_what_followers_cost(rig, tmp_path):
    with web(rig, tmp_path) as (process, port):
        turn_id = submitted(port)
        until(
            lambda: httpx.get(f"http://127.0.0.1:{port}/turns/{turn_id}").json()["status"] == "done",
            "one turn",
            patience=60,
        )
        asyncio.run(_measure(process, port))


async def _measure(process, port):
    warm = [await opened(port, "/events") for _ in range(5)]
    await asyncio.sleep(2)
    before, _ = used(process)
    idle = [await opened(port, "/events") for _ in range(FOLLOWERS)]
    await asyncio.sleep(1)
    after, cpu = used(process)
    began = time.monotonic()
    await asyncio.sleep(10)
    _, idle_cpu = used(process)
    share = (idle_cpu - cpu) / (time.monotonic() - began)
    print(f"\n{FOLLOWERS} idle followers: {(after - before) / 1024 / FOLLOWERS:.1f} KiB and {share:.1%} of a core")  # noqa: T201 - figures
    for _, writer in (*warm, *idle):
        writer.close()
    turn_id = await asyncio.to_thread(submitted, port)
    before, cpu = used(process)
    began = time.monotonic()
    readers = [await opened(port, f"/turns/{turn_id}/events") for _ in range(FOLLOWERS)]
    came = await asyncio.gather(*(read_to_the_end(reader) for reader, _ in readers))
    after, spent = used(process)
    assert all(has_end for _, has_end in came)
    seconds, total = spent - cpu, sum(size for size, _ in came)
    print(  # noqa: T201 - figures
        f"{FOLLOWERS} followers of one text: {seconds:.1f} s of CPU in {time.monotonic() - began:.1f} s, "
        f"{1000 * seconds / FOLLOWERS:.1f} ms each, {total / FOLLOWERS / 1024:.0f} KiB each"
    )
    for _, writer in readers:
        writer.close()


def test_follower_that_reads_nothing_hurts_nobody(rig, tmp_path):
    """It is given up; the others get everything, and the server forgets what it kept for it."""
    with web(rig, tmp_path) as (process, port), socket.socket() as stopped:
        turn_id = submitted(port, "talker")
        stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stopped.connect(("127.0.0.1", port))
        stopped.sendall(f"GET /turns/{turn_id}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        with ThreadPoolExecutor(4) as pool:
            readers = list(pool.map(lambda _: _read_all(port, turn_id), range(4)))
        assert [reader.texts[1] == LONG for reader in readers] == [True] * 4
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code == 200
        until(lambda: not _is_connected(process, stopped), "it is given up")


def _is_connected(process, client):
    mine = client.getsockname()[1]
    return any(each.raddr and each.raddr.port == mine for each in process.net_connections())


def _read_all(port, turn_id):
    """It comes back where it was given up: three copies of such a text are more than its queue takes."""
    reader = Reader()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        while not reader.is_over:
            read_on(reader, client, f"/turns/{turn_id}/events")
    return reader
