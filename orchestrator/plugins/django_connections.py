"""Django's database connections, in threads of ours that run users' code.

Django closes a connection that is too old or broken at the begin and the end of a request, in the thread of that
request. A tool, a plugin or a channel runs in a thread that never sees a request, so it is done here. Django is not
imported: where nobody else has imported it there is no connection either.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_log = logging.getLogger(__name__)


@contextmanager
def kept_fresh() -> Iterator[None]:
    """For a thread that is used again: Django decides by CONN_MAX_AGE what stays open."""
    _do(lambda db: db.close_old_connections())
    try:
        yield
    finally:
        _do(lambda db: db.close_old_connections())


@contextmanager
def closed_afterwards() -> Iterator[None]:
    """For a thread that ends behind it."""
    try:
        yield
    finally:
        _do(lambda db: db.connections.close_all())


def _do(close: Callable[[Any], object]) -> None:
    """The result of the user's code counts, also where a connection cannot be closed."""
    db, conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    settings = getattr(conf, "settings", None)
    if db is None or settings is None or not settings.configured or not hasattr(db, "close_old_connections"):
        return  # not there, not set up, or still being imported by another thread
    try:
        close(db)
    except Exception:
        _log.warning("a database connection of Django could not be closed", exc_info=True)
