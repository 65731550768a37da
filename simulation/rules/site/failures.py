"""Failures of nodes: when each fails and is back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from slicewise.simulation.rules.slurm_model.model import SlurmModel


@dataclass(frozen=True, order=True)
class Outage:
    """A node that is down between two Unix seconds."""

    down_s: float
    up_s: float
    node: str


class FailingNodes:
    """Lets nodes of the model fail and come back when it is time."""

    def __init__(self, model: SlurmModel, those: Sequence[Outage]) -> None:
        self._model = model
        self._events = sorted(_events(those))
        self._next = 0

    def next_s(self) -> float:
        """When the next node fails or is back; inf if none ever does."""
        return self._events[self._next][0] if self._next < len(self._events) else inf

    def advance(self) -> bool:
        """Let those fail and come back whose time has come; return whether any did."""
        first = self._next
        while self.next_s() <= self._model.now_s:
            _, is_up, node = self._events[self._next]
            self._next += 1
            if is_up:
                self._model.restore_node(node)
            else:
                self._model.fail_node(node)
        return self._next > first


def _events(those: Sequence[Outage]) -> Iterator[tuple[float, bool, str]]:
    for outage in those:
        yield outage.down_s, False, outage.node
        yield outage.up_s, True, outage.node
