"""A channel as the engine sees it: whatever a plugin raises becomes one of three errors, and none shows a secret.

Errors of HTTP clients name the URL, and Telegram has its token there. So nothing that a plugin raises is chained to
what we raise: a traceback would show it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from chordage.orchestrator.core.channels import Outgoing, Polled
from chordage.orchestrator.core.errors import RoomError, Unavailable, Undeliverable
from chordage.orchestrator.gateways.ports import Channel
from chordage.orchestrator.system import user_code

MASK = "***"
T = TypeVar("T")


def masked(text: str, secrets: Collection[str]) -> str:
    """The longest first: one may be part of another."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


class GuardedChannel:
    def __init__(self, name: str, channel: Channel, secrets: Collection[str]) -> None:
        self._name = name
        self._channel = channel
        self._secrets = frozenset(secrets)

    def poll(self, cursor: str | None) -> Polled:
        with self._as_our_errors():
            polled = _called(lambda: self._channel.poll(cursor))
            if not isinstance(polled, Polled):
                raise TypeError(f"poll returned {type(polled).__name__}, not Polled")
            return polled

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        with self._as_our_errors():
            _called(lambda: self._channel.deliver(address, reply))

    def close(self) -> None:
        with self._as_our_errors():
            _called(self._channel.close)

    @contextmanager
    def _as_our_errors(self) -> Iterator[None]:
        try:
            yield
        except Undeliverable as error:
            raise Undeliverable(self._masked(str(error))) from None
        except (Unavailable, RoomError) as error:
            raise Unavailable(self._masked(str(error))) from None
        except Exception as error:
            words = self._masked(f"its plugin raised {type(error).__name__}: {error}")
            raise Unavailable(words) from None

    def _masked(self, text: str) -> str:
        return masked(f"channel {self._name}: {text}", self._secrets)


def _called(act: Callable[[], T]) -> T:
    def closing() -> T:
        with user_code.closed_django_connections():
            return act()

    return user_code.call(closing)
