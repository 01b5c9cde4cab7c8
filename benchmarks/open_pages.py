"""Many pages of the console that stay open on one web process: what each costs while nothing happens and while one run
streams, and how soon a change is on the screen.

    python benchmarks/open_pages.py [--database postgres] [--pages 500] [--turns 10000]

Half of the pages show runs that wait, fifty of them the run that streams; the others are the overview, the list of
runs and the inbox. The run is carried out by the process of this program, which is a worker of the fleet meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import os
import re
import statistics
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx
import psutil

from chordage.benchmarks.hook_burst import serve, until_up
from chordage.benchmarks.million_turns import fill
from chordage.benchmarks.servers import running_servers
from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.status import RunStatus
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views import PageQuery
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from
from chordage.workers.fleet.member import free_port

WATCHED_BY = 50
IDLE_FOR = 20.0  # seconds
OPENED_AT_ONCE = 10
TEXT = "The parcel left the depot on Friday and has not been seen since. " * 20
ROOM = {
    "agent.toml": 'name = "ada"\nmodel = "scripted:script.yaml"\n',
    "script.yaml": f'- text: "{TEXT}"\n  pace: 0.1\n  chunk: 12\n',
}


@dataclass(slots=True)
class OpenPage:
    """A page with its stream, and when each of its messages came."""

    path: str
    messages: list[tuple[float, str]] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def first_with(self, word: str, since: float) -> float | None:
        return next((at - since for at, message in self.messages if at >= since and word in message), None)


async def kept_open(port: int, cookie: str, page: OpenPage, opened: asyncio.Semaphore) -> None:
    headers = {"host": f"127.0.0.1:{port}", "cookie": cookie}
    async with opened:
        address = await _address(port, headers, page.path)
        reader, writer = await _asked(port, headers, address)
        await reader.readuntil(b"\r\n\r\n")
    page.opened.set()
    lines: list[str] = []
    while line := await reader.readline():
        text = line.decode().rstrip("\r\n")
        if text.startswith("data: "):
            lines.append(text)
        elif not text and lines:
            page.messages.append((time.time(), "".join(lines)))
            lines = []
    writer.close()


async def _address(port: int, headers: dict[str, str], path: str) -> str:
    """Of the stream of a page, as the page says."""
    reader, writer = await _asked(port, {**headers, "connection": "close"}, path)
    body = (await reader.read()).decode()
    writer.close()
    match = re.search(r'hx-sse:connect="([^"]+)"', body)
    if match is None:
        raise SystemExit(f"{path} has no stream: {body[:300]}")
    return html.unescape(match[1])


async def _asked(port: int, headers: dict[str, str], path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
    return reader, writer


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    rss: int
    cpu: float
    at: float


def load_of(pid: int) -> Load:
    process = psutil.Process(pid)
    times = process.cpu_times()
    return Load(rss=process.memory_info().rss, cpu=times.user + times.system, at=time.monotonic())


def shown(label: str, before: Load, after: Load, pages: int) -> None:
    share = (after.cpu - before.cpu) / (after.at - before.at)
    print(f"{label:<22} {share * 100:6.1f} % of a core, {share * 1e6 / max(1, pages):8.0f} us/s a page", flush=True)


def times(label: str, waits: list[float | None]) -> None:
    seen = sorted(wait for wait in waits if wait is not None)
    missing = len(waits) - len(seen)
    if not seen:
        print(f"{label:<22} on none of {len(waits)} pages", flush=True)
        return
    text = f"median {statistics.median(seen) * 1000:5.0f} ms, worst {seen[-1] * 1000:5.0f} ms"
    print(f"{label:<22} {text} on {len(seen)} pages, {missing} without", flush=True)


async def watch(rt: Runtime, pid: int, port: int, cookie: str, number: int) -> None:
    bare = load_of(pid)
    turn_id = await asyncio.to_thread(_sent, port)
    waiting = views.run_page(rt.store, PageQuery(limit=number // 2), status=RunStatus.WAITING).data
    lists = ["/console/", "/console/runs", "/console/inbox"]
    paths = [f"/console/runs/{run.run_id}" for run in waiting][: number // 2 - WATCHED_BY]
    streamed = [OpenPage(f"/console/runs/{turn_id}") for _ in range(WATCHED_BY)]
    others = [OpenPage(path) for path in paths]
    listed = [OpenPage(lists[place % 3]) for place in range(number - len(others) - WATCHED_BY)]
    pages = [*streamed, *others, *listed]
    opened = asyncio.Semaphore(OPENED_AT_ONCE)
    began = time.monotonic()
    tasks = [asyncio.create_task(kept_open(port, cookie, page, opened)) for page in pages]
    await asyncio.wait_for(asyncio.gather(*(page.opened.wait() for page in pages)), 240)
    print(f"{number} pages are open after {time.monotonic() - began:.1f} s: "
          f"{len(others)} runs that wait, {WATCHED_BY} of one run, {len(listed)} lists", flush=True)  # fmt: skip
    await asyncio.sleep(5)
    before = load_of(pid)
    await asyncio.sleep(IDLE_FOR)
    after = load_of(pid)
    print(f"{'memory':<22} {(after.rss - bare.rss) / number / 1024:6.0f} KB a page ({bare.rss / 2**20:.0f} MB bare)")
    shown("idle", before, after, number)
    before, started = load_of(pid), time.time()
    await asyncio.to_thread(local.complete, rt, turn_id, on_wait=lambda _turn: None)
    ended = time.time()
    await asyncio.sleep(3)
    shown("while one run streams", before, load_of(pid), number)
    run_id = views.turn(rt.store, turn_id).run_id
    assert run_id is not None
    gaps = [
        later[0] - earlier[0]
        for page in streamed
        for earlier, later in zip(page.messages, page.messages[1:], strict=False)
        if started + 1 < earlier[0] < ended - 1
    ]
    times("start, on lists", [page.first_with(f"turn-{turn_id}", started) for page in listed[1::3]])
    times("gap between updates", list(gaps))
    times("end, on pages of it", [page.first_with("answered", ended - 0.5) for page in streamed])
    times("end, on lists", [page.first_with("answered", ended - 0.5) for page in listed[1::3]])
    at = time.time()
    _ = await asyncio.to_thread(_sent, port)
    await asyncio.sleep(5)
    times("new turn, on lists", [page.first_with("turn-", at) for page in listed[1::3]])
    for task in tasks:
        task.cancel()


def _sent(port: int) -> str:
    answer = httpx.post(f"http://127.0.0.1:{port}/turns", json={"text": "Where is it?"}, timeout=30)
    turn_id: str = answer.raise_for_status().json()["turn_id"]
    return turn_id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", help="postgres, or the URL of an empty database.  [default: SQLite]")
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--turns", type=int, default=10_000)
    given = parser.parse_args()
    os.environ |= {"CHORDAGE_KEY_RATE": "0", "CHORDAGE_TENANT_RATE": "0"}
    with running_servers(database=given.database, redis_url=None) as used:
        room = used.folder / "room"
        room.mkdir()
        for name, content in ROOM.items():
            (room / name).write_text(content)
        store = Store(used.database_url, hold=3600.0)
        schema_version.upgrade(store)
        fill(store, given.turns)
        token = stages.make_link(store, datetime.now(UTC))
        store.close()
        port = free_port()
        server = serve(room, used.database_url, f"{used.redis_url}/0", port, 1)
        rt = runtime_from(load(room=room, database_url=used.database_url, redis_url=f"{used.redis_url}/0"))
        try:
            asyncio.run(until_up(port))
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                client.get("/console/login", params={"link": token})
                cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
            asyncio.run(watch(rt, server.pid, port, cookie, given.pages))
        finally:
            server.terminate()
            server.wait()
            rt.store.close()


if __name__ == "__main__":
    main()
