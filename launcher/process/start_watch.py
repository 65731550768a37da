"""Remembers what the gateway tells of requests that wait for a start."""

from slicewise.launcher.rules.gateway.start_lines import StartLine
from slicewise.launcher.rules.turn.start_traces import HEARD_S, HeardOfStarts

_MOST_ANSWERED = 1000
"""First answers that are remembered: a turn takes them over within a second."""


class StartWatch:
    """When each backend began to hold, and when a replica first answered who had waited there.

    Of each the gateway tells again and again: what follows within ``HEARD_S`` belongs to the first.
    """

    def __init__(self) -> None:
        self._held_s: dict[str, float] = {}
        self._answered_s: dict[tuple[str, str], float] = {}

    def hear(self, line: StartLine) -> None:
        """Take a line."""
        if line.replica is None:
            if abs(line.at_s - self._held_s.get(line.backend, 0.0)) > HEARD_S:
                self._held_s[line.backend] = line.at_s
            return
        place = (line.backend, line.replica)
        if abs(line.at_s - self._answered_s.get(place, 0.0)) > HEARD_S:
            # At the end: who has not been heard of for long goes first.
            self._answered_s.pop(place, None)
            self._answered_s[place] = line.at_s
        while len(self._answered_s) > _MOST_ANSWERED:
            del self._answered_s[next(iter(self._answered_s))]

    @property
    def heard(self) -> HeardOfStarts:
        """All of it, as it is now."""
        return HeardOfStarts(dict(self._held_s), dict(self._answered_s))
