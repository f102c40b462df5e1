"""Nobody waits in silence: where no live block is drawn (a pipe, a log, CI), a line now and then says what is being
done, how far it is and how long it still takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from airloop.events import Say
from airloop.watch.display.phase import Phase

# Where nothing was said at all, the first line comes after this …
SOON_S = 2.0
# … a phase that lasts so long says how far it is …
FIRST_S = 10.0
# … and then somebody says something at least so often: 30 s are promised, and a busy machine wakes a thread late.
EVERY_S = 25.0
LOOK_S = 0.5


class Heartbeat:
    def __init__(self, phase: Callable[[], Phase | None], say: Say) -> None:
        self._phase = phase
        self._say = say
        self._spoke = time.monotonic()  # when anything was last said, or else when this began
        self._began = self._spoke
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="air-heartbeat", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._end.set()
        self._thread.join(timeout=LOOK_S + 1)

    def heard(self) -> None:
        """Something was said: that is a sign of life too."""
        self._spoke = time.monotonic()

    def _due(self, phase: Phase) -> bool:
        silent = time.monotonic() - self._spoke
        if self._spoke == self._began and silent >= SOON_S:
            return True
        return silent >= EVERY_S or (not phase.told and min(silent, phase.lasted()) >= FIRST_S)

    def _beat(self) -> None:
        while not self._end.wait(min(LOOK_S, FIRST_S / 4, EVERY_S / 4)):
            phase = self._phase()
            if phase is None or not self._due(phase):
                continue
            phase.told = True
            self.heard()
            try:
                self._say(phase.line())
            except (OSError, ValueError):  # whoever listened is gone; the work goes on
                return
