"""A clock for the ledger, which follows only later where the host's clock was set."""

import time

from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.common.log import report, warn
from slicewise.slurm_plugin.rules.common.clock import STEP_S, Clock, followed


class SteadyClock:
    """A clock in Unix seconds; see ``common.clock``."""

    def __init__(self) -> None:
        self._clock: Clock | None = None

    @property
    def stepped_s(self) -> float:
        """Seconds by which the host's clock is ahead of this one; 0 if both agree."""
        return self._clock.stepped_s if self._clock else 0.0

    @property
    def shown_s(self) -> float:
        """The time now, by the offset found at the last ``now_s``; callable from any thread."""
        clock = self._clock
        return time.monotonic() + clock.offset_s if clock else wall_s()

    def now_s(self) -> float:
        """Read both clocks, log where the host's was set, and return the time."""
        was_s, monotonic_s = self.stepped_s, time.monotonic()
        self._clock = clock = followed(self._clock, wall_s(), monotonic_s)
        if clock.stepped_s and abs(clock.stepped_s - was_s) > STEP_S:
            warn("clock_stepped", ahead_s=round(clock.stepped_s))
        elif was_s and not clock.stepped_s:
            report("clock_settled")
        return monotonic_s + clock.offset_s
