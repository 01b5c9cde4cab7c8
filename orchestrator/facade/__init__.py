"""What users of chordage import. Light on purpose: no Celery, no SQL, no HTTP, not even pydantic comes with it."""

from typing import TYPE_CHECKING, Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import (
    ChordageError,
    ConfigError,
    Conflict,
    InvalidDecision,
    InvalidMessage,
    ModelFailed,
    NotFound,
    RoomError,
    Unavailable,
    UnknownAgent,
    UserError,
    WrongSchema,
)
from chordage.orchestrator.gateways.tools import Context, OnExpiry, ResumeMode, Suspend, tool

if TYPE_CHECKING:
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
    "Suspend",
    "Unavailable",
    "UnknownAgent",
    "UserError",
    "WrongSchema",
    "__version__",
    "tool",
]


if not TYPE_CHECKING:  # a type checker would take it for permission to import anything

    def __getattr__(name: str) -> Any:
        """`__version__` is looked up when asked for: reading the package's metadata takes longer than all the rest."""
        if name != "__version__":
            raise AttributeError(f"module 'chordage' has no attribute {name!r}")
        from importlib.metadata import version

        return version("chordage")
