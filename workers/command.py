"""The program `chordage`. Ctrl-C during its imports ends it without a traceback.

Nothing may be imported before that, so it is installed as a module outside the package, `chordage_command`.
"""

INTERRUPTED = 130  # the exit code that a shell reports for Ctrl-C


def main() -> None:
    import sys

    try:
        from chordage.workers.cli import main as command
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command()
