"""Holds signals back, so that Ctrl-C does not interrupt what must happen as a whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

#: Signals that arrive at any moment and that programs handle. To ask for all 64 of them would take a tenth of a step.
ASYNCHRONOUS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF")
    if hasattr(signal, name)
)

Handler = Callable[[int, FrameType | None], Any]


class HeldSignals:
    """Puts off signals that have a Python handler until the block is left, then hands them on.

    Python runs such handlers between any two instructions of the main thread, and the usual ones raise an exception:
    ``KeyboardInterrupt``, a timeout. Blocking signals in the operating system would not do: another thread (torch has
    several) would receive them, and Python would still run the handler in this one. In other threads there is nothing
    to hold.

    The block should be short, and must not wait for anything.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._arrived: list[tuple[Handler, int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in ASYNCHRONOUS:
                handler = signal.getsignal(number)
                if callable(handler):
                    # Stored first: a signal may arrive as soon as its handler is replaced.
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except BaseException:
            self._restore()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        self._hand_on()

    def _hand_on(self) -> None:
        """Run the handlers of what arrived, all of them even if one raises."""
        try:
            while self._arrived:
                handler, number, frame = self._arrived.pop(0)
                handler(number, frame)
        finally:
            if self._arrived:
                self._hand_on()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append((self._handlers[number], number, frame))

    def _restore(self) -> None:
        """Put all handlers back, even if one of them is called meanwhile and raises."""
        waiting = list(self._handlers.items())

        def put_back() -> None:
            try:
                while waiting:
                    signal.signal(*waiting[-1])
                    waiting.pop()
            finally:
                if waiting:
                    put_back()

        put_back()
