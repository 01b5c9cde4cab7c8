"""Fills an empty database with many turns of a realistic mix, and says how long each page of the console and each list
of the API takes on it.

    python benchmarks/million_turns.py [--database postgres] [--turns 1000000] [--only REGEX]

The turns of four months on a quarter as many threads: most of two API spaces and a channel, 200 of a small tenant
between them; some that failed, that wait for a decision since long, or that are queued now. A real server is asked
over HTTP, one request after the other on one connection.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import httpx

from chordage.benchmarks.hook_burst import serve, until_up
from chordage.benchmarks.servers import running_servers
from chordage.orchestrator import stages
from chordage.orchestrator.api.pages import cursor_of
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.workers.fleet.member import free_port

SMALL = 200  # turns of the tenant `small`
NEWEST = 3000  # turns that are queued or wait
WAITING = 1000  # older ones that wait
PER_THREAD = 4
SPAN = timedelta(days=120)
LOT = 20_000
REQUESTS = 20
ROOM = {"agent.toml": 'name = "ada"\nmodel = "scripted:script.yaml"\n', "script.yaml": "- text: done\n"}

_MADE = ("n", "turn", "run", "thread", "agent", "status", "ended", "delivery", "at", "arrival")
_MAKE = """CREATE TEMPORARY TABLE made (n integer PRIMARY KEY, turn text, run text, thread text, agent text,
    status text, ended text, delivery text, at text, arrival integer)"""

# `{time}` is the column `at` as the database stores it.
_FILL = (
    """INSERT INTO threads (id, agent, arrivals, created_at, updated_at)
    SELECT thread, min(agent), count(*), min({time}), max({time}) FROM made GROUP BY thread""",
    """INSERT INTO turns (id, thread_id, arrival, agent, grp, rank, tenant, status, disposition, ready, steers, origin,
    sender, text, meta, strategy, control, source, due_at, queued_at, nudge_at, started_at, done_at, run_id)
    SELECT turn, thread, arrival, agent, 'chat', 0, substr(thread, 1, 9), status, ended,
    CASE WHEN status = 'queued' THEN 1 ELSE 0 END, 0, 'invoke', 'service',
    'Where is order ' || n || '? It was to come on Friday, and the parcel has not been seen since it left the depot.',
    '{{}}', 'react', 'auto', 'bench', {time}, {time}, {time}, {time}, CASE WHEN status = 'done' THEN {time} END,
    CASE WHEN status = 'queued' OR ended = 'expired' THEN NULL ELSE run END FROM made""",
    """INSERT INTO runs (id, thread_id, turn_id, agent, grp, tenant, strategy, control, status, reason, epoch, step,
    phase, rounds, resends, expiries, input_tokens, output_tokens, cached_tokens, cache_write_tokens, suspended,
    rested_ms, rested_since, children, steers, started_at, ended_at)
    SELECT run, thread, turn, agent, 'chat', substr(thread, 1, 9), 'react', 'auto',
    CASE WHEN status = 'done' THEN 'done' ELSE 'waiting' END,
    CASE ended WHEN 'answered' THEN 'natural_end' WHEN 'failed' THEN 'error' WHEN 'cancelled' THEN 'cancelled'
    ELSE 'suspended' END, 1, 3,
    'inference', 1, 0, 0, 900, 120, 0, 0, 0, 0, CASE WHEN status = 'done' THEN NULL ELSE {time} END, 0, 0, {time},
    CASE WHEN status = 'done' THEN {time} END FROM made
    WHERE status <> 'queued' AND (ended IS NULL OR ended <> 'expired')""",
    """INSERT INTO calls (id, run_id, thread_id, step, place, ask_id, generation, tool, arguments, effect, status,
    content, resends, expiries, suspension_id, ended_at)
    SELECT 'c' || run, run, thread, 2, 0, 'ask0', 1, 'look', '{{"order": 17}}', 'pure',
    CASE WHEN status = 'done' THEN 'succeeded' ELSE 'suspended' END, 'The parcel is in the depot of Bremen.', 0, 0,
    CASE WHEN status = 'done' THEN NULL ELSE 's' || run END, CASE WHEN status = 'done' THEN {time} END FROM made
    WHERE status <> 'queued' AND (ended IS NULL OR ended <> 'expired')""",
    """INSERT INTO suspensions (id, call_id, run_id, thread_id, agent, step, tool, why, prompt, resume_mode, digest,
    status, created_at, on_expiry)
    SELECT 's' || run, 'c' || run, run, thread, agent, 2, 'look', 'tool', 'May I look?', 'replay_tool_call', 'd',
    'open', {time}, 'deny' FROM made WHERE status = 'active'""",
    """INSERT INTO journal (thread_id, run_id, step, kind, body, at)
    SELECT thread, run, s, kind, CAST(body AS {json}), {time} FROM made,
    (SELECT 0 AS s, 'UserMessage' AS kind, '{{"sender": "service", "text": "Where is it?", "turn": "t"}}' AS body
     UNION ALL SELECT 1, 'AssistantTurnCommitted', '{{"text": "", "asks": [], "model": "m", "usage": {{}}}}'
     UNION ALL SELECT 3, 'RunFinished', '{{"reason": "natural_end"}}') AS facts
    WHERE status = 'done' AND ended <> 'expired'""",
    """INSERT INTO outbox (thread_id, turn_id, target, receiver, body, created_at, position, status, attempts, forgiven,
    next_at, sent_at, dead_at)
    SELECT thread, turn, '{{"url": "https://example.com/hook"}}', 'example.com', '{{}}', {time}, n, delivery,
    1, 0, {time}, CASE WHEN delivery = 'sent' THEN {time} END, CASE WHEN delivery = 'dead' THEN {time} END FROM made
    WHERE delivery <> ''""",
)


_ON_THE_BUS = """INSERT INTO projection (name, bus, generation, position, failures)
    SELECT 'bus', 'bench', 1, max(id), 0 FROM journal"""


def rows(number: int, until: datetime, newest: int, waiting: int) -> Iterator[dict[str, object]]:
    """One for each turn, the oldest first."""
    every = max(1, number // waiting)
    arrivals: dict[str, int] = {}
    for n in range(number):
        at = until - SPAN * ((number - n) / number)
        if n % max(1, number // SMALL) == 0:
            space = "api@small"
        else:
            space = ("api@big", "api", "telegram", "api@big")[n % 4]
        is_open = number - n <= newest or n % every == every - 1
        # One turn to a thread that is open, others in lines.
        thread = f"{space}:open-{n}" if is_open else f"{space}:{(n * 7919) % (number // PER_THREAD)}"
        arrivals[thread] = arrivals.get(thread, 0) + 1
        tail = n % 100
        ended = "failed" if tail < 4 else "cancelled" if tail < 6 else "expired" if tail == 6 else "answered"
        status = ("active" if n % 3 == 0 or number - n > newest else "queued") if is_open else "done"
        yield {
            "n": n, "turn": _id(at, n, 1), "run": _id(at, n, 2), "thread": thread, "arrival": arrivals[thread],
            "agent": "dora" if n % 10_000 == 5 else ("ada", "ada", "ada", "bob", "cleo")[n % 5], "status": status,
            "ended": ended if status == "done" else None,
            "delivery": "" if status != "done" or n % 2 else "dead" if n % 4000 == 0 else "sent",
            "at": at.strftime("%Y-%m-%d %H:%M:%S.%f"),
        }  # fmt: skip


def _id(at: datetime, n: int, kind: int) -> str:
    digits = f"{int(at.timestamp() * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}-7{n % 4096:03x}-8{kind:03x}-{n:012x}"


def fill(store: Store, number: int, *, newest: int = NEWEST, waiting: int = WAITING) -> None:
    """In one transaction: a store for PostgreSQL has to hold it long enough."""
    time_of, json_type = ("CAST(at || '+00' AS timestamptz)", "json") if store.is_postgres else ("at", "text")
    values = ", ".join(f"%({name})s" if store.is_postgres else f":{name}" for name in _MADE)
    add = f"INSERT INTO made ({', '.join(_MADE)}) VALUES ({values})"  # noqa: S608 - the names of columns above
    made = rows(number, datetime.now(UTC) - timedelta(seconds=30), newest, waiting)
    with store.write() as tx:
        tx.exec_driver_sql(_MAKE)
        while lot := list(islice(made, LOT)):
            tx.exec_driver_sql(add, lot)
        for statement in _FILL:
            tx.exec_driver_sql(statement.format(time=time_of, json=json_type))
        tx.exec_driver_sql(_ON_THE_BUS)
        tx.exec_driver_sql("DROP TABLE made")
    if store.is_postgres:
        with store.read() as tx:
            tx.exec_driver_sql("ANALYZE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Of the requests for one address, in milliseconds; `first` is until the head of the answer."""

    who: str
    path: str
    status: int
    first: tuple[float, float]  # median, worst
    whole: tuple[float, float]
    size: int  # bytes
    compressed: int


def measured(client: httpx.Client, who: str, path: str, *, requests: int = REQUESTS) -> Measured:
    first, whole, body, status = [], [], b"", 0
    for _ in range(requests + 1):
        began = time.perf_counter()
        with client.stream("GET", path) as response:
            first.append((time.perf_counter() - began) * 1000)
            body, status = response.read(), response.status_code
            whole.append((time.perf_counter() - began) * 1000)
    del first[0], whole[0]  # a process answers its first request later
    return Measured(
        who=who, path=path, status=status, size=len(body), compressed=len(zlib.compress(body, 6)),
        first=(statistics.median(first), max(first)), whole=(statistics.median(whole), max(whole)),
    )  # fmt: skip


def report(one: Measured) -> None:
    times = "  ".join(f"{value:7.1f}" for value in (*one.first, *one.whole))
    print(f"{one.who:<9} {one.path:<58.58} {one.status}  {times}  {one.size:8} {one.compressed:7}", flush=True)


PAGES = (
    "/", "/runs", "/runs?q=status:failed", "/runs?q=status:queued", "/runs?q=status:waiting", "/runs?q=agent:dora",
    "/runs?q=tool:nothing", "/runs?q=needle", "/runs?before={middle}", "/runs?q=status:failed&before={middle}",
    "/runs/{run}", "/threads", "/threads?before={place}", "/thread?id={thread}", "/inbox", "/agents", "/groups",
    "/pulse", "/channels", "/channels?status=pending", "/channels?status=dead", "/workers",
)  # fmt: skip
FILTERS = (
    "/turns?status=queued", "/turns?status=active", "/turns?disposition=failed", "/turns?agent=dora",
    "/turns?agent=nobody", "/runs?status=waiting", "/runs?status=running", "/runs?agent=dora", "/threads?agent=dora",
    "/deliveries?status=pending", "/deliveries?status=dead", "/deliveries?status=sent",
)  # fmt: skip


def lists_of(client: httpx.Client) -> list[str]:
    """All that can be read without naming a row."""
    described = client.get("/openapi.json").json()["paths"]
    quiet = {"/events", "/health", "/ready", "/turns/wait"}
    return sorted(path for path, verbs in described.items() if "get" in verbs and "{" not in path and path not in quiet)


def all_pages(client: httpx.Client, path: str) -> tuple[int, int, float, float]:
    """Rows, pages, seconds, and the slowest page in milliseconds."""
    after, number, pages, worst, began = None, 0, 0, 0.0, time.perf_counter()
    while pages < 100:
        at = time.perf_counter()
        answer = client.get(path, params={"after": after} if after else {}).json()
        worst = max(worst, (time.perf_counter() - at) * 1000)
        number, pages, after = number + len(answer["data"]), pages + 1, answer["next"]
        if after is None:
            break
    return number, pages, time.perf_counter() - began, worst


def ask_all(store: Store, url: str, only: str) -> None:
    now = datetime.now(UTC)
    print(f"{'':68} status  first byte, worst    whole, worst      bytes  zlib")
    for who, key in _keys(store, now).items():
        options: Any = {"timeout": 120, "limits": httpx.Limits(keepalive_expiry=2)}
        with httpx.Client(base_url=url, headers={"x-api-key": key}, **options) as api:
            middle = now - SPAN / 2
            names = {"middle": _id(middle, 0, 0), "place": cursor_of(middle, "x"), **_row_of(api)}
            if who in {"operator", "small"}:
                with httpx.Client(base_url=f"{url}/console", **options) as page:
                    page.post("/login", data={"key": key}, headers={"sec-fetch-site": "same-origin"})
                    for path in PAGES:
                        if re.search(only, f"console {path}"):
                            report(measured(page, who, path.format(**names)))
            for path in [*lists_of(api), *FILTERS]:
                if re.search(only, f"api {path}"):
                    report(measured(api, f"{who} api", path))
            for path in ("/turns", "/runs", "/threads", "/deliveries"):
                if who == "small" and re.search(only, f"all {path}"):
                    number, pages, seconds, worst = all_pages(api, path)
                    print(f"{who}: all {number} of {path} on {pages} pages, {seconds:.2f} s, slowest {worst:.0f} ms")


def _keys(store: Store, now: datetime) -> dict[str, str]:
    """Of an operator, and of callers that read only, by who they are."""
    readers = frozenset({KeyScope.READ, KeyScope.PAYLOADS})
    callers: dict[str, tuple[str | None, frozenset[KeyScope]]] = {
        "operator": (None, frozenset(KeyScope)), "api": (None, readers), "big": ("big", readers),
        "small": ("small", readers),
    }  # fmt: skip
    keys = {}
    for who, (tenant, scopes) in callers.items():
        terms = KeyTerms(name=who, tenant=tenant, scopes=scopes, agents=None, groups=None, expires_at=None)
        keys[who] = stages.create_key(store, terms, CLI, now).text
    return keys


def _row_of(api: httpx.Client) -> dict[str, str]:
    """Of a turn that was answered: its run and its thread."""
    turns = api.get("/turns", params={"limit": 1, "disposition": "answered"}).json()["data"]
    return {"run": turns[0]["run_id"], "thread": turns[0]["thread_id"]} if turns else {"run": "", "thread": ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", help="postgres, or the URL of an empty database.  [default: SQLite]")
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="A regular expression: `console /runs`, `api /turns`, `all`.")
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
        port = free_port()
        server = serve(room, used.database_url, f"{used.redis_url}/0", port, 1)
        try:
            asyncio.run(until_up(port))
            ask_all(store, f"http://127.0.0.1:{port}", given.only)
        finally:
            server.terminate()
            server.wait()
            store.close()


if __name__ == "__main__":
    main()
