"""The entry of the command `popart`: it hears Ctrl-C before anything else is loaded.

This module is outside of the package, because importing anything of the package imports NumPy first. It uses
the part of `signal` that is built into Python, because the rest is imported slowly beside Python's own start,
during which only Python itself hears Ctrl-C.
"""

import _signal  # pyright: ignore[reportMissingImports]
import os


def main() -> None:
    """Run the command.

    A signal during the first imports ends it with a message instead of a traceback. When the work is done,
    signals are ignored: Python takes another second to unload JAX, and the exit status is that of the work.
    """
    numbers = [getattr(_signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    heard = [number for number in numbers if number and _signal.getsignal(number) != _signal.SIG_IGN]
    for number in heard:
        _signal.signal(number, _end)
    try:
        from popart.lab.cli import main as run

        run()
    finally:
        for number in heard:
            _signal.signal(number, _signal.SIG_IGN)


def _end(*_: object) -> None:
    try:
        os.write(2, b"\npopart: Interrupted. Run the same command again to start over.\n")
    finally:
        os._exit(130)
