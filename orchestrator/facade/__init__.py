"""What users of chordage import. Light on purpose: no Celery, no SQL, no HTTP, not even pydantic comes with it."""

from typing import TYPE_CHECKING, Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import OnExpiry, ResumeMode
from chordage.orchestrator.core.contents import Cipher, CipherContext
from chordage.orchestrator.core.errors import (
    AnswerTooLarge,
    ChordageError,
    ConfigError,
    Conflict,
    Forbidden,
    InvalidDecision,
    InvalidMessage,
    ModelFailed,
    NotFound,
    QueueFull,
    RoomError,
    StepRefused,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    UnknownAgent,
    UserError,
    WrongSchema,
)
from chordage.orchestrator.gateways.tools.context import Context, Suspend
from chordage.orchestrator.gateways.tools.declare import tool

if TYPE_CHECKING:
    from chordage.workers.client.async_client import AsyncClient
    from chordage.workers.client.client import client
    from chordage.workers.client.sync_client import Client

    __version__: str

__all__ = [
    "AnswerTooLarge",
    "AsyncClient",
    "ChordageError",
    "Cipher",
    "CipherContext",
    "Client",
    "ConfigError",
    "Conflict",
    "Context",
    "Effect",
    "Forbidden",
    "InvalidDecision",
    "InvalidMessage",
    "ModelFailed",
    "NotFound",
    "OnExpiry",
    "QueueFull",
    "ResumeMode",
    "RoomError",
    "StepRefused",
    "Suspend",
    "TooManyRequests",
    "Unauthenticated",
    "Unavailable",
    "UnknownAgent",
    "UserError",
    "WrongSchema",
    "__version__",
    "client",
    "tool",
]


_CLIENTS = {"AsyncClient": "async_client", "Client": "sync_client", "client": "client"}

if not TYPE_CHECKING:  # a type checker would take it for permission to import anything

    def __getattr__(name: str) -> Any:
        """What is dear is looked up when asked for: the package's metadata, and the client with all that it needs."""
        match name:
            case "__version__":
                from importlib.metadata import version

                return version("chordage")
            case "AsyncClient" | "Client" | "client":
                from importlib import import_module

                return getattr(import_module(f"chordage.workers.client.{_CLIENTS[name]}"), name)
            case _:
                raise AttributeError(f"module 'chordage' has no attribute {name!r}")
