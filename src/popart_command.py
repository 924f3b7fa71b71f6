"""The entry of the command `popart`: it hears Ctrl-C before anything else is loaded.

This module is outside of the package, because importing anything of the package imports NumPy first.
"""

import os
import signal


def main() -> None:
    """Run the command; a signal during the first imports ends it, with a message instead of a traceback."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
    from popart.lab.cli import main as run

    run()


def _end(*_: object) -> None:
    try:
        os.write(2, b"\npopart: Interrupted. Run the same command again to start over.\n")
    finally:
        os._exit(130)
