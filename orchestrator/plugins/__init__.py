"""Plugins: what an agent adds to the phases of its runs. Those that come with chordage, and how others are loaded."""
