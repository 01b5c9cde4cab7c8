"""SQL, one statement per function. Its tables are known wherever any module of it is imported."""

from chordage.orchestrator.store import schema_poll

__all__ = ["schema_poll"]
