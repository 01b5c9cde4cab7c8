"""Plugins: what an agent adds to the phases of its runs."""
