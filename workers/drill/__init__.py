"""`chordage drill`: a game day on a live fleet."""
