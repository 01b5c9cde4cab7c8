"""A fleet that shall be mistreated: two machines, each with its own network to database and Redis.

The machine `near` has a clock that can be moved. Workers, the beat and the database's disk are all there to be lost.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import make_url

from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from support import chaos_worker, far_worker, moved_worker, processes
from support.bus import WebReceiver
from support.postgres import PostgresServer
from support.rig import Rig
from support.rig_worker import Worker
from support.tcp_proxy import TcpProxy
from support.valkey import WatchedValkey

DISK = 700  # megabytes
LEASE = 15.0
SETTINGS = {
    "lease": LEASE, "beat": 5, "sweep": 2, "pulse": 2, "project": 0.5, "poison_after": 100_000, "log_level": "WARNING",
    "delivery_first": 0.5, "delivery_longest": 2.0, "delivery_timeout": 2.0, "delivery_attempts": 10_000,
    "webhook_allow": "127.0.0.0/8", "webhook_secret": "whsec_c2VjcmV0", "budgets": {"chat": 24, "chore": 2},
}  # fmt: skip
ASKING = '"rig_tools", "rig_questions"'
AGENTS = {
    "here": 'placement = "here"\ntools = ["rig_tools"]\n',
    "together": 'placement = "together"\ntools = ["rig_tools"]\n',
    "spread": 'placement = "spread"\ntools = ["rig_tools"]\n',
    "auto": 'placement = "auto"\ntools = ["rig_tools"]\n',
    "asker": f"tools = [{ASKING}]\n",
    "lead": 'tools = ["rig_tools"]\nagents = ["spread"]\n',
}
CHORE = "---\nevery: {every}s\nagent: keeper\n---\nLook.\n"
KEEPER = 'replies:\n  - text: "looked"\nrepeat: true\n'


# Notes each change of what is final. Each table with its statuses that are, and its columns that then stay.
FINAL = {
    "turns": (("done",), ("status", "disposition", "run_id", "into_turn", "done_at")),
    "runs": (("done",), ("status", "reason", "code", "epoch", "step", "phase", "ended_at")),
    "calls": (("cancelled", "failed", "succeeded"), ("status", "code", "content", "ended_at")),
    "suspensions": (("settled", "superseded"), ("status",)),
    "outbox": (("sent",), ("status", "sent_at")),
}


def _of_row(row: str, names: Sequence[str]) -> str:
    return f"({', '.join(f'{row}.{name}' for name in names)})"


WITNESS = (
    "CREATE TABLE changed_though_final (what text, row_id text, was text, is_now text)",
    """
    CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO changed_though_final VALUES (TG_TABLE_NAME, OLD.id::text, OLD::text, NEW::text); RETURN NEW;
    END $$
    """,
    *(
        f"CREATE TRIGGER note_change AFTER UPDATE ON {table} FOR EACH ROW "
        f"WHEN (OLD.status IN ({', '.join(map(repr, statuses))}) AND "
        f"{_of_row('OLD', names)} IS DISTINCT FROM {_of_row('NEW', names)}) EXECUTE FUNCTION note_change()"
        for table, (statuses, names) in FINAL.items()
    ),
    # When a call was settled, by a clock that nothing moves.
    "CREATE TABLE settled_calls (call_id text, at timestamptz)",
    """
    CREATE FUNCTION note_settled() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO settled_calls VALUES (NEW.id::text, clock_timestamp()); RETURN NEW;
    END $$
    """,
    f"""
    CREATE TRIGGER note_settled AFTER UPDATE ON calls FOR EACH ROW
    WHEN (NEW.status IN {FINAL["calls"][0]} AND OLD.status <> NEW.status) EXECUTE FUNCTION note_settled()
    """,
    f"""
    CREATE TRIGGER note_settled_at_once AFTER INSERT ON calls FOR EACH ROW
    WHEN (NEW.status IN {FINAL["calls"][0]}) EXECUTE FUNCTION note_settled()
    """,
)


class Beat(Worker):
    """`chordage beat`: it has no file that says that it is ready."""

    def start(self) -> None:
        command = [*self.program, "beat", *self.arguments]
        self.process = processes.spawn_warm(command, self.log, env=self.env, cwd=self.folder)

    def wait_until_ready(self) -> None: ...

    @property
    def is_ready(self) -> bool:
        return self.alive


class ChaosFleet:
    def __init__(
        self,
        folder: Path,
        valkey: WatchedValkey,
        postgres: PostgresServer,
        disk: Path | None,
        *,
        guard: str = "",
        drops: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """`guard`: one that its workers lack, and `drops`: what the database lacks."""
        self.valkey, self.postgres, self.disk = valkey, postgres, disk
        self.clock, self.messages = folder / "clock", folder / "messages"
        self.settings: Mapping[str, Any] = {**SETTINGS, **settings}
        url = _migrated(postgres)
        self.rig = Rig(folder, url, valkey.url, placement="auto", **self.settings)
        with self.rig.runtime.store.write() as tx:
            for statement in (*WITNESS, *drops):
                tx.exec_driver_sql(statement)
        self._guard = guard
        self.rig.broker = valkey
        self.receiver = WebReceiver()
        self._write_room()
        address = make_url(url)
        assert address.port is not None
        self.networks = {name: (TcpProxy(address.port), TcpProxy(valkey.port)) for name in ("near", "far")}
        for name, machine, role, size in (
            ("turns-near", "near", "turns", 8),
            ("tools-near", "near", "tools", 2),
            ("turns-far", "far", "turns", 8),
            ("all-far", "far", "all", 4),
        ):
            program = ({"near": moved_worker, "far": far_worker}[machine].__file__,)
            size_and_role = ("--role", role, "--concurrency", str(size))
            self.rig.worker(name, *size_and_role, program=program, env=self._reaching(machine, url))
        env = {**self.rig.env, **self._reaching("far", url)}
        self.rig.workers["beat"] = Beat(name="beat", arguments=(), env=env, folder=folder)
        self.rig.workers["beat"].start()
        self.rig.ready()

    def _write_room(self) -> None:
        room = self.rig.room
        for name, text in AGENTS.items():
            (room / "agents" / f"{name}.toml").write_text(f'model = "fake:model"\non_unknown = "ask"\n{text}')
        (room / "agents/keeper.toml").write_text('model = "scripted:keeper.yaml"\n')
        (room / "keeper.yaml").write_text(KEEPER)
        (room / "chores").mkdir()
        for name, every in (("look", 3), ("watch", 7)):
            (room / f"chores/{name}.md").write_text(CHORE.format(every=every))

    def _reaching(self, machine: str, url: str) -> dict[str, str]:
        database, redis = self.networks[machine]
        return {
            "CHORDAGE_DATABASE_URL": make_url(url).set(port=database.port).render_as_string(hide_password=False),
            "CHORDAGE_REDIS_URL": self.valkey.url.replace(f":{self.valkey.port}", f":{redis.port}"),
            moved_worker.CLOCK: str(self.clock),
            chaos_worker.MESSAGES: str(self.messages),
            chaos_worker.WITHOUT: self._guard,
        }

    @property
    def workers(self) -> list[Worker]:
        return [worker for name, worker in self.rig.workers.items() if name != "beat"]

    def close(self) -> None:
        self.rig.close()
        self.receiver.close()
        for network in self.networks.values():
            for proxy in network:
                proxy.close()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A disk of its own, which can be filled; None where this account may mount nothing."""
    folder.parent.chmod(0o711)  # PostgreSQL works as another account there
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def chaos_fleet(folder: Path, valkey: WatchedValkey, **more: Any) -> Iterator[ChaosFleet]:
    """`more`: as for `ChaosFleet`."""
    with ExitStack() as ends:
        disk = ends.enter_context(small_disk(processes.scratch_folder("disk") / "disk"))
        postgres = PostgresServer(fsync=True, folder=disk)  # a crash must not undo what was committed
        ends.callback(postgres.stop, "immediate")
        fleet = ChaosFleet(folder, valkey, postgres, disk, **more)
        ends.callback(fleet.close)
        patch = ends.enter_context(pytest.MonkeyPatch.context())
        chaos_worker.disturb_messages(patch, fleet.messages)  # the callers' are lost and doubled too
        yield fleet


def tree(pid: int) -> list[psutil.Process]:
    """The parent first."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _migrated(server: PostgresServer) -> str:
    url = server.create_database()
    with contextlib.closing(Store(url)) as store:
        schema_version.upgrade(store)
    return url
