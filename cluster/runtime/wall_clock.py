"""Reads this host's wall clock, which an operator or a time server may set at any moment.

It is right for what people are shown, for certificates, and for times that two processes of one
host compare. What is decided about jobs goes by slurmctld's clock (``Slurm.clock_s``), what is
charged by ``SteadyClock``, and what waits by ``time.monotonic``. No other module reads it.
"""

import time


def wall_s() -> float:
    """Return the Unix seconds that this host's clock shows."""
    return time.time()
