"""The HTTP server as uvicorn starts it: `uvicorn --factory chordage.workers.web:make_app`."""
