"""SQL, one statement per function. Here all tables are made known, whichever of them is asked for first."""

from chordage.orchestrator.store import schema_poll, schema_pulse

__all__ = ["schema_poll", "schema_pulse"]
