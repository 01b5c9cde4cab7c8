"""Our own clients of Redis: for locks, live news, the bus, and what is looked up."""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.sentinel import Sentinel

from chordage.config.redis_url import Kind, RedisAddress

Sentinels: Any = Sentinel  # untyped
USUAL: dict[str, Any] = {
    "max_connections": 1000,
    "socket_timeout": 5,
    "socket_connect_timeout": 3,
    "health_check_interval": 25,
}


def client_of(address: RedisAddress, **options: Any) -> Redis:
    """Connects when it is used. Behind sentinels, each new connection asks them which server is the master."""
    given = {**USUAL, **options, "db": address.db, "username": address.username, "password": address.password}
    match address.kind:
        case Kind.SENTINEL:
            asked = {name: given[name] for name in ("socket_timeout", "socket_connect_timeout")}
            sentinel = Sentinels(address.hosts, sentinel_kwargs={**asked, **address.sentinel_login})
            client: Redis = sentinel.master_for(str(address.master), redis_class=Redis, **given)
            return client
        case Kind.SOCKET:
            return Redis(unix_socket_path=address.path, **given)
        case Kind.TCP | Kind.TLS:
            ((host, port),) = address.hosts
            return Redis(host=host, port=port, ssl=address.kind is Kind.TLS, **given, **address.tls)
