"""Signals that stop a command: Ctrl-C, SIGTERM, and SIGHUP of a closed terminal.

While a command runs, a thread of its own handles signals, so that neither an import nor a compilation delays
them. Training saves a checkpoint before it stops. Everything else ends at once: files are replaced as a
whole, so that a run can be interrupted at any time.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

STATUS = 130
"""Exit status of an interrupted command."""

PATIENCE = 1.0
"""Seconds without output after which a command says what it is doing."""

SHOW_CURSOR = b"\x1b[?25h"


class _Listener:
    """Receives signals through a pipe that Python writes to as soon as one arrives."""

    def __init__(self, message: str, clean_up: Callable[[], None]) -> None:
        self.message, self.clean_up = message, clean_up
        self.saving: threading.Event | None = None
        """Event that asks work with something to save to stop."""

        self._doing, self._since = "", 0.0
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in _heard()}
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def wait_for(self, doing: str) -> None:
        """Say what the command is doing, if it takes long; an empty text ends this."""
        self._doing, self._since = doing, time.monotonic()

    def close(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before)
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def _listen(self) -> None:
        while True:
            if not select.select([self._read], [], [], PATIENCE / 4)[0]:
                self._show_what_is_waited_for()
            elif not (numbers := os.read(self._read, 16)):
                return
            elif set(numbers) & set(self._handlers):
                self._stop(asked=signal.SIGINT in numbers)

    def _show_what_is_waited_for(self) -> None:
        if self._doing and time.monotonic() - self._since > PATIENCE:
            _tell(f"popart: {self._doing} ...\n".encode())
            self._doing = ""

    def _stop(self, asked: bool) -> None:
        """Stop, or have the work save first; while it saves, only Ctrl-C stops it: systems repeat SIGTERM."""
        if self.saving is not None and not (asked and self.saving.is_set()):
            if not self.saving.is_set():
                self.saving.set()
                _tell(b"\npopart: Saving ... Press Ctrl-C again to stop without saving.\n")
            return
        try:
            for do in (*_last_acts, self.clean_up):
                do()
        finally:
            _tell((SHOW_CURSOR if os.isatty(2) else b"") + f"\npopart: {self.message}\n".encode())
            os._exit(STATUS)


_listener: _Listener | None = None
_last_acts: list[Callable[[], None]] = []


@contextmanager
def before_leaving(do: Callable[[], None]) -> Iterator[None]:
    """Call a function, in the thread of signals, before a signal ends the command at once."""
    _last_acts.append(do)
    try:
        yield
    finally:
        _last_acts.remove(do)


@contextmanager
def listening(message: str, clean_up: Callable[[], None]) -> Iterator[None]:
    """Handle signals in a thread; the command ends at once, with a message, unless it must save something."""
    global _listener
    if _listener is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _listener = _Listener(message, clean_up)
    try:
        yield
    finally:
        _listener.close()
        _listener = None


def waiting_for(doing: str) -> None:
    """Say what the command is doing if that takes more than a second; an empty text ends this."""
    if _listener is not None:
        _listener.wait_for(doing)


@contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Let a signal set an event, because there is something to save; a second Ctrl-C interrupts at once."""
    if _listener is not None:
        _listener.saving = stop
        try:
            yield
        finally:
            _listener.saving = None
        return
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number: int, _: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = [(number, signal.signal(number, hear)) for number in _heard()]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _heard() -> list[signal.Signals]:
    """Return the signals that are not ignored, as SIGHUP is after nohup."""
    return [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


def _tell(text: bytes) -> None:
    """Write a message, unless nobody reads: a terminal that was closed, or a full pipe."""
    with suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, text)
