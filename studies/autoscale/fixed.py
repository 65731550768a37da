"""A number of replicas that never changes: the right one is known with hindsight only."""

from studies.autoscale.policy import Seen


class Fixed:
    """A fixed number; ``target``: how many replicas."""

    def __init__(self, _concurrency: int, target: float) -> None:
        self._replicas = round(target)

    def wanted(self, _: Seen) -> int:
        """Decide each second."""
        return self._replicas
