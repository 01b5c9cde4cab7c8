"""What users of chordage import. Light on purpose: no Celery, no SQL, no HTTP, not even pydantic comes with it."""

from typing import TYPE_CHECKING, Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import OnExpiry, ResumeMode
from chordage.orchestrator.core.errors import (
    ChordageError,
    ConfigError,
    Conflict,
    InvalidDecision,
    InvalidMessage,
    ModelFailed,
    NotFound,
    RoomError,
    StepRefused,
    Unavailable,
    UnknownAgent,
    UserError,
    WrongSchema,
)
from chordage.orchestrator.gateways.tools.context import Context, Suspend
from chordage.orchestrator.gateways.tools.declare import tool

if TYPE_CHECKING:
    from chordage.workers.client import client

    __version__: str

__all__ = [
    "ChordageError",
    "ConfigError",
    "Conflict",
    "Context",
    "Effect",
    "InvalidDecision",
    "InvalidMessage",
    "ModelFailed",
    "NotFound",
    "OnExpiry",
    "ResumeMode",
    "RoomError",
    "StepRefused",
    "Suspend",
    "Unavailable",
    "UnknownAgent",
    "UserError",
    "WrongSchema",
    "__version__",
    "client",
    "tool",
]


if not TYPE_CHECKING:  # a type checker would take it for permission to import anything

    def __getattr__(name: str) -> Any:
        """What is dear is looked up when asked for: the package's metadata, and the client with all that it needs."""
        match name:
            case "__version__":
                from importlib.metadata import version

                return version("chordage")
            case "client":
                from importlib import import_module

                return import_module("chordage.workers.client").client
            case _:
                raise AttributeError(f"module 'chordage' has no attribute {name!r}")
