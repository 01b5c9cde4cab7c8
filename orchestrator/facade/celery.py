"""`celery -A chordage worker|beat|inspect|report|status|control`: the app of the fleet whose settings are found here.

It is made when it is asked for, so that importing this module needs no settings and brings nothing along.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module("chordage.workers.app").app
