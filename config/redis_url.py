"""The address of Redis, in any of the usual forms, and as Celery takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

FORMS = "redis://, rediss:// (TLS), unix:// or redis+socket:// (a socket), or sentinel://host:26379;sentinel://…"
CERTIFICATES = ("required", "optional", "none")  # redis-py's words for how the server's certificate is checked
PATHS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
YES_OR_NO = {"true": True, "false": False}


class RedisKind(StrEnum):
    TCP = "redis"
    TLS = "rediss"
    SOCKET = "unix"
    SENTINEL = "sentinel"


KINDS = {**{kind.value: kind for kind in RedisKind}, "redis+socket": RedisKind.SOCKET, "socket": RedisKind.SOCKET}
QUERY = {
    RedisKind.TCP: {"db", "virtual_host", "password"},
    RedisKind.TLS: {"db", "virtual_host", "password", "ssl_cert_reqs", "ssl_check_hostname", *PATHS},
    RedisKind.SOCKET: {"db", "virtual_host", "password"},
    RedisKind.SENTINEL: {"db", "virtual_host", "password"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisAddress:
    """`hosts`: of the server, or of its sentinels; a socket has a `path` instead."""

    kind: RedisKind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Mapping[str, Any] = field(default_factory=dict)  # as redis-py and Celery take it
    master: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Without passwords: for messages and logs."""
        if self.kind is RedisKind.SOCKET:
            return f"unix://{self.path}?db={self.db}"
        where = ",".join(f"{_bracketed(host)}:{port}" for host, port in self.hosts)
        return f"{self.kind}://{where}/{self.db}" + (f" ({self.master})" if self.master else "")

    @property
    def broker_url(self) -> str:
        """As Celery and Flower know it."""
        return f"redis+{self.bare_url}" if self.kind is RedisKind.SOCKET else self.bare_url

    @property
    def bare_url(self) -> str:
        """For settings that name the transport or backend elsewhere."""
        if self.kind is RedisKind.SOCKET:
            return f"socket://{self._account}{quote(self.path)}?virtual_host={self.db}"
        urls = (f"{self.kind}://{self._account}{_bracketed(host)}:{port}/{self.db}" for host, port in self.hosts)
        return ";".join(urls)

    @property
    def sentinel_options(self) -> dict[str, Any]:
        """Transport options of Celery, for the broker and for results."""
        if self.kind is not RedisKind.SENTINEL:
            return {}
        return {"master_name": self.master, "sentinel_kwargs": self.sentinel_login}

    @property
    def sentinel_login(self) -> dict[str, Any]:
        return {"password": self.sentinel_password} if self.sentinel_password else {}

    @property
    def _account(self) -> str:
        if self.username is None and self.password is None:
            return ""
        return f"{quote(self.username or '', safe='')}:{quote(self.password or '', safe='')}@"


def parse(url: str, *, master: str | None = None, sentinel_password: str | None = None) -> RedisAddress:
    """Raises ValueError, whose text has nothing secret in it."""
    parts = [_split(part) for part in url.split(";") if part.strip()]
    kinds = {kind for kind, _ in parts}
    if not parts or len(kinds) > 1 or (len(parts) > 1 and kinds != {RedisKind.SENTINEL}):
        raise ValueError(f"is not the address of one Redis: give {FORMS}")
    kind, first = parts[0]
    if kind is RedisKind.SENTINEL and not master:
        raise ValueError("names sentinels, and not the server they watch: set redis_master too, such as mymaster")
    query = _query(kind, first)
    return RedisAddress(
        kind=kind,
        hosts=() if kind is RedisKind.SOCKET else tuple(_hosts(kind, [part for _, part in parts])),
        path=_path(kind, first),
        db=_database(kind, first, query),
        username=unquote(first.username) if first.username else None,
        password=unquote(first.password) if first.password else query.get("password"),
        tls=_tls(query) if kind is RedisKind.TLS else {},
        master=master if kind is RedisKind.SENTINEL else None,
        sentinel_password=sentinel_password if kind is RedisKind.SENTINEL else None,
    )


def _split(url: str) -> tuple[RedisKind, SplitResult]:
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:  # whose text may have the password in it
        raise ValueError(f"is no URL (in a password, write %23 for #, %2F for / and so on): give {FORMS}") from None
    if not parts.scheme or "://" not in url:
        raise ValueError(f"is no URL: give {FORMS}")
    if parts.scheme not in KINDS:
        raise ValueError(
            f"has the scheme {parts.scheme}://, and only Redis will do: locks, live news and the join of a round are "
            f"kept there beside the broker. Give {FORMS}"
        )
    return KINDS[parts.scheme], parts


def _hosts(kind: RedisKind, parts: list[SplitResult]) -> Iterator[tuple[str, int]]:
    for part in parts:
        if not part.hostname:
            raise ValueError(f"names no host: give {FORMS}")
        yield part.hostname, part.port or (26379 if kind is RedisKind.SENTINEL else 6379)


def _path(kind: RedisKind, part: SplitResult) -> str:
    if kind is not RedisKind.SOCKET:
        return ""
    path = unquote((part.hostname or "") + part.path)
    if not path.startswith("/"):
        raise ValueError("a socket has an absolute path: unix:///run/redis/redis.sock?db=0")
    return path


def _query(kind: RedisKind, part: SplitResult) -> dict[str, str]:
    query = dict(parse_qsl(part.query, keep_blank_values=True))
    for name in query:
        if name not in QUERY[kind]:
            raise ValueError(f"has {name!r} behind the question mark: there may be {', '.join(sorted(QUERY[kind]))}")
    return query


def _database(kind: RedisKind, part: SplitResult, query: Mapping[str, str]) -> int:
    in_path = "" if kind is RedisKind.SOCKET else part.path.strip("/")
    number = query.get("db") or query.get("virtual_host") or in_path or "0"
    if not number.isdecimal():
        raise ValueError(f"names the database {number!r}: give its number, as in redis://host:6379/0")
    return int(number)


def _tls(query: Mapping[str, str]) -> dict[str, Any]:
    certificates = query.get("ssl_cert_reqs", CERTIFICATES[0]).lower().removeprefix("cert_")
    if certificates not in CERTIFICATES:
        raise ValueError(f"has ssl_cert_reqs={certificates}: give one of {', '.join(CERTIFICATES)}")
    check = query.get("ssl_check_hostname", "true" if certificates == CERTIFICATES[0] else "false").lower()
    if check not in YES_OR_NO:
        raise ValueError(f"has ssl_check_hostname={check}: give true or false")
    paths = {name: query[name] for name in PATHS if name in query}
    return {"ssl_cert_reqs": certificates, "ssl_check_hostname": YES_OR_NO[check], **paths}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
