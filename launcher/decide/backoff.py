"""Replicas that fail right after their start are not started again at once."""

from dataclasses import dataclass

LONGEST_S = 60.0
HOPELESS, HOPELESS_S = 10, 300.0
"""After so many failures in a row the next start waits this long."""
FAILING = 3
"""After so many an earlier generation of the service takes over again."""
SETTLED_S = 30.0
"""A replica that has been ready for this long started well."""


@dataclass(frozen=True)
class Backoff:
    """Failures in a row, of a whole generation: its slots all start the same model.

    Attributes:
        failures: starts that failed since one settled.
        failed_s: when the last one failed.
    """

    failures: int = 0
    failed_s: float = 0.0

    @property
    def until_s(self) -> float:
        """No new start before: 1, 2, 4 ... 60 s after the last failure, then 300 s."""
        if not self.failures:
            return 0.0
        if self.failures >= HOPELESS:
            return self.failed_s + HOPELESS_S
        return self.failed_s + min(LONGEST_S, 2.0 ** (self.failures - 1))

    @property
    def is_failing(self) -> bool:
        """It looks as if no start would ever succeed."""
        return self.failures >= FAILING

    def failed(self, now_s: float) -> "Backoff":
        """After one more failure (several at the same look are one: they have one cause)."""
        return Backoff(self.failures + 1, now_s)

    def forgiven(self) -> "Backoff":
        """The last one was none."""
        return Backoff(max(0, self.failures - 1), self.failed_s)

    def settled(self, ready_since_s: float, now_s: float) -> "Backoff":
        """After a replica that is ready since then: one that came after the failure ends it."""
        good = ready_since_s > self.failed_s and now_s - ready_since_s >= SETTLED_S
        return Backoff() if good else self

    def restarted(self, ordered_s: float | None) -> "Backoff":
        """After an order to restart, which ends the wait if it came after the failure."""
        return Backoff() if ordered_s is not None and ordered_s > self.failed_s else self
