"""Backoff: the more often replicas fail right after their start, the later the next start."""

from dataclasses import dataclass

LONGEST_S = 60.0
HOPELESS, HOPELESS_S = 10, 300.0
"""After this many failures in a row the next start waits ``HOPELESS_S`` seconds."""
FAILING = 3
"""After this many failures in a row an earlier generation of the service takes over again."""
SETTLED_S = 30.0
"""Seconds for which a replica must have been ready so that its start counts as successful."""


@dataclass(frozen=True)
class Backoff:
    """Failures in a row of a whole generation: its slots all start the same model.

    Attributes:
        failures: starts that failed since one settled.
        failed_s: when the last one failed, in Unix seconds.
    """

    failures: int = 0
    failed_s: float = 0.0

    @property
    def until_s(self) -> float:
        """Unix seconds before which no new start is made; 0 without failures.

        The pause after the last failure is 1, 2, 4 ... 60 s, then 300 s.
        """
        if not self.failures:
            return 0.0
        if self.failures >= HOPELESS:
            return self.failed_s + HOPELESS_S
        return self.failed_s + min(LONGEST_S, 2.0 ** (self.failures - 1))

    @property
    def is_failing(self) -> bool:
        """Whether it looks as if no start would ever succeed."""
        return self.failures >= FAILING

    def failed(self, now_s: float) -> "Backoff":
        """Count one more failure; several at the same look are one, since they have one cause."""
        return Backoff(self.failures + 1, now_s)

    def forgiven(self) -> "Backoff":
        """Forget the most recent failure: it turned out not to be one."""
        return Backoff(max(0, self.failures - 1), self.failed_s)

    def settled(self, ready_since_s: float, now_s: float) -> "Backoff":
        """Forget all failures if a replica that became ready after the last one has settled."""
        good = ready_since_s > self.failed_s and now_s - ready_since_s >= SETTLED_S
        return Backoff() if good else self

    def restarted(self, ordered_s: float | None) -> "Backoff":
        """Forget all failures if the owner has ordered a restart after the last one."""
        return Backoff() if ordered_s is not None and ordered_s > self.failed_s else self
