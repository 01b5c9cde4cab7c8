"""`chordage simulate`: the engine's own admission, dispatch and ending under virtual time, for fleets not there yet."""
