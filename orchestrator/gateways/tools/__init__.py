"""Plain Python functions as tools: how they are declared, checked and run, and the tools that come with chordage."""
