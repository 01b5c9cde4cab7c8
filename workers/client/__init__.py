"""For programs that drive turns: `client = chordage.client(...)`, `for message in client.runner("...")`."""

from chordage.orchestrator.views.stepped import HeldPlan
from chordage.workers.client.client import Client, client
from chordage.workers.client.message import HeldMessage, RunOutcome
from chordage.workers.client.runner import Runner

__all__ = ["Client", "HeldMessage", "HeldPlan", "RunOutcome", "Runner", "client"]
