"""Probes of the services: whether the database and Redis answer, how they are set, and what they have left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from chordage.orchestrator.core.doctor import ProbeAnswer, Symptom, error, warning
from chordage.orchestrator.core.errors import Unavailable, WrongKey, WrongSchema
from chordage.orchestrator.gateways.redis_state import RedisState, read_state
from chordage.orchestrator.store import diagnosis, schema_version
from chordage.orchestrator.store.capacity import capacity
from chordage.workers import connections
from chordage.workers.bootstrap import check_redis
from chordage.workers.doctor.context import DoctorContext
from chordage.workers.doctor.machine import SQLITE

OLDEST_POSTGRES, OLDEST_REDIS = 14, (6, 2)  # older ones are not maintained any more
NEARLY_FULL = 0.9
DURABLE = "valkey-cli CONFIG SET appendonly yes"


# the database


def look_at_database(context: DoctorContext) -> ProbeAnswer:
    """Raises Unavailable where it does not answer, or takes no writes."""
    settings, store = context.settings, context.store
    if settings.database.startswith(SQLITE) and not Path(settings.database.removeprefix(SQLITE)).exists():
        raise Unavailable(f"there is no database at {settings.database.removeprefix(SQLITE)}: `chordage migrate`")
    store.ping()
    with store.read() as tx:
        version, unsafe = diagnosis.server_version(tx), diagnosis.unsafe_settings(tx)
    return ProbeAnswer(summary=version, symptoms=tuple(server_symptoms(version, unsafe=unsafe)))


def server_symptoms(version: str, *, unsafe: Sequence[str]) -> Iterator[Symptom]:
    name, _, number = version.partition(" ")
    major = int(number.partition(".")[0].split()[0]) if number[:1].isdigit() else 0
    if name == "PostgreSQL" and major < OLDEST_POSTGRES:
        text = f"{version} is older than {OLDEST_POSTGRES}, which is the oldest that is maintained."
        yield warning("old_database", "database", text, "psql -c 'SELECT version()'")
    if unsafe:
        resets = " ".join(f"-c 'ALTER SYSTEM RESET {name}'" for name in unsafe)
        yield error(
            "unsafe_commits", "database",
            f"off: {', '.join(unsafe)}. A crash of the server may lose or damage what was committed.",
            f"psql {resets} -c 'SELECT pg_reload_conf()'",
        )  # fmt: skip


def look_at_schema(context: DoctorContext) -> ProbeAnswer:
    try:
        stored = schema_version.stored_version(context.store, note_key=False)
    except WrongSchema as fault:
        symptom = error("wrong_schema", "database", f"{fault}.", "chordage migrate")
        return ProbeAnswer(summary="not of this version", symptoms=(symptom,))
    except WrongKey as fault:
        symptom = error("wrong_key", "CHORDAGE_CIPHER", f"{fault}.", "chordage check")
        return ProbeAnswer(summary="contents cannot be read", symptoms=(symptom,))
    with context.store.read() as tx:
        missing = schema_version.missing_indexes(tx)
        others = schema_version.other_releases(tx, version("chordage"))
        dialect = tx.dialect
    symptoms = tuple(
        error(
            "missing_index", str(index.name),
            f"the index {index.name} is missing, or cannot be used: statements read whole tables.",
            "; ".join(schema_version.statements_for(index, dialect)) + ";",
        )
        for index in missing
    )  # fmt: skip
    return ProbeAnswer(summary=f"version {schema_version.described(stored, others)}", symptoms=symptoms)


def look_at_connections(context: DoctorContext) -> ProbeAnswer:
    limits = capacity(context.store)
    if limits is None:
        return ProbeAnswer(summary="a file has no limit")
    fault = connections.fault(limits)
    symptoms = (warning("few_connections", limits.named, f"{fault}.", "chordage status"),) if fault else ()
    return ProbeAnswer(summary=f"{limits.taken} of {limits.at_most} are taken", symptoms=symptoms)


# Redis


def look_at_redis(context: DoctorContext) -> ProbeAnswer:
    """Raises Unavailable where it does not answer."""
    if context.redis is None:
        return ProbeAnswer(summary="none is set")
    check_redis(context.settings)
    state = read_state(context.redis)
    return ProbeAnswer(
        summary=f"{state.name} {state.version}",
        symptoms=tuple(redis_symptoms(state, str(context.settings.redis_address))),
    )


def redis_symptoms(state: RedisState, where: str) -> Iterator[Symptom]:
    yield from _of_persistence(state, where)
    if state.role != "master":
        text = "the server is a replica, which takes no writes: no message can be sent."
        yield error("redis_is_replica", where, text, "valkey-cli ROLE")
    if state.policy != "noeviction":
        text = f"maxmemory-policy is {state.policy}: when the memory is full, Redis drops queues and locks."
        yield error("redis_evicts", where, text, "valkey-cli CONFIG SET maxmemory-policy noeviction")
    if state.most_memory and state.memory >= NEARLY_FULL * state.most_memory:
        text = f"{state.memory} of {state.most_memory} bytes are in use: beyond that, Redis refuses messages."
        yield error("redis_memory_full", where, text, "valkey-cli MEMORY DOCTOR")
    if state.most_clients and state.clients >= NEARLY_FULL * state.most_clients:
        text = f"{state.clients} of {state.most_clients} clients are connected: further ones are refused."
        yield warning("redis_clients_full", where, text, "valkey-cli CLIENT LIST")
    if tuple(int(part) for part in state.version.split(".")[:2]) < OLDEST_REDIS:
        text = f"{state.name} {state.version} is older than {'.'.join(map(str, OLDEST_REDIS))}."
        yield warning("old_redis", where, text, "valkey-cli INFO server")


def _of_persistence(state: RedisState, where: str) -> Iterator[Symptom]:
    for what in state.write_failures:
        text = f"the last {what} could not be written to disk: Redis may refuse writes, and a restart loses messages."
        yield error("redis_cannot_save", where, text, "valkey-cli INFO persistence")
    if state.has_log:
        return
    lost = "messages by name that no worker has stored yet"
    if state.has_snapshots is None:
        text = f"appendonly is off, and the server does not say whether it makes snapshots: a restart may lose {lost}."
    elif state.has_snapshots:
        text = f"appendonly is off: a restart loses {lost}, if they came after the last snapshot."
    else:
        text = f"appendonly and save are off: a restart loses {lost}."
    yield warning("redis_not_durable", where, text, DURABLE)
