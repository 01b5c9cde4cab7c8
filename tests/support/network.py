"""Tests talk to this machine only.

A refusal is not an OSError, so no code under test can take it for an ordinary connection failure and pass its test.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest

GIVEN = ("TEST_REDIS_URL", "TEST_DATABASE_URL")


@pytest.fixture(scope="session", autouse=True)
def only_this_machine() -> Iterator[None]:
    allowed = {host for name in GIVEN if (host := urlsplit(os.environ.get(name, "")).hostname)}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, _guarded_connect(getattr(socket.socket, name), allowed))
        patch.setattr(socket, "getaddrinfo", _guarded_lookup(socket.getaddrinfo, allowed))
        yield


def _guarded_connect(connect: Any, allowed: set[str]) -> Any:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in {socket.AF_INET, socket.AF_INET6} and not _near(address[0], allowed):
            self.close()  # its opener may close it on an OSError only
            _refuse(address[0])
        return connect(self, address)

    return guarded


def _guarded_lookup(lookup: Any, allowed: set[str]) -> Any:
    def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name and not _is_address(name) and not _near(name, allowed):
            _refuse(name)
        found = lookup(host, *args, **kwargs)
        if name in allowed:
            allowed.update(address[4][0] for address in found)
        return found

    return guarded


def _near(host: str, allowed: set[str]) -> bool:
    return host in allowed or host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _refuse(host: str) -> NoReturn:
    pytest.fail(f"a test wanted to reach {host}: tests talk to this machine only")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
