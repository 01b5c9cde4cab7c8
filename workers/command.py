"""The program `chordage`: while it imports the package, Ctrl-C is an end and no fault.

Nothing may be imported before that, so it is installed as a module outside the package, `chordage_command`.
"""

INTERRUPTED = 130  # what a shell says of a program that Ctrl-C has ended


def main() -> None:
    import sys

    try:
        from chordage.workers.cli import main as command
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command()
