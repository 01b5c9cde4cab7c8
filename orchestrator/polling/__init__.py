"""Channels are looked at, and what they bring becomes turns."""

from chordage.orchestrator.polling.looking import Looked, Outcome, let_go, look, renew

__all__ = ["Looked", "Outcome", "let_go", "look", "renew"]
