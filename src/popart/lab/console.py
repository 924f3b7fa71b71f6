"""Output that never ends a command, even with a lost terminal, a full disk or a narrow encoding."""

import io
import os
import sys
from typing import Any


class TolerantOutput(io.RawIOBase):
    """A file descriptor for output; when it can no longer be written, output to it is dropped."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, content: Any, /) -> int:
        try:
            return os.write(self._descriptor, content)
        except OSError:  # a closed pipe, a lost terminal, a full disk
            drop_output(self._descriptor)
            return len(content)


def drop_output(descriptor: int) -> None:
    """Redirect a file descriptor to the null device, for this process and those that it starts."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def tolerate_lost_output() -> None:
    """Drop output that cannot be written, and replace characters that its encoding lacks."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before this process began
            drop_output(descriptor)
        elif stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper):
            continue  # a test, or a program that calls this one, reads the output
        encoding = getattr(stream, "encoding", None) or "utf-8"
        raw = io.BufferedWriter(TolerantOutput(descriptor))
        lines = name == "stderr" or os.isatty(descriptor)
        setattr(sys, name, io.TextIOWrapper(raw, encoding, "replace", line_buffering=lines))


def say(message: str) -> None:
    """Print a line for the user on standard error."""
    print(f"popart: {message}", file=sys.stderr, flush=True)
