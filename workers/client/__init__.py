"""For programs that drive turns: `client = chordage.client(...)`, `for message in client.runner("...")`."""

from chordage.workers.client.client import Client, client
from chordage.workers.client.message import Message, Outcome, Plan
from chordage.workers.client.runner import Runner

__all__ = ["Client", "Message", "Outcome", "Plan", "Runner", "client"]
