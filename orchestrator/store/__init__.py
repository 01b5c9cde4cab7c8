"""SQL, one statement per function. Here all tables are made known, whichever of them is asked for first."""

from chordage.orchestrator.store import schema_poll as _schema_poll
from chordage.orchestrator.store import schema_pulse as _schema_pulse
