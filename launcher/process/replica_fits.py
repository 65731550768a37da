"""Lets replicas that serve fit what the plan says of them: adapters, models of a pool."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from slicewise.cluster.language.service import tenant_of
from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.process.replica_questions import ReplicaQuestions
from slicewise.launcher.process.saved_statistics import Run
from slicewise.launcher.rules.turn.state import State

_Answer = TypeVar("_Answer")
Replicas = Mapping[str, Mapping[Run, Replica]]
"""By ``tenant/service`` and run, each with what it is to have."""


class ReplicaFits(Generic[_Answer]):
    """Tells each replica what it is to have, when that is due.

    Attributes:
        replicas: those that can be told.
    """

    def __init__(
        self,
        fit: Callable[[Replica], Awaitable[_Answer]],
        due: Callable[[str, Run, Replica, float, Sequence[Replica]], Replica | None],
        hear: Callable[[str, Run, Replica, _Answer], None],
    ) -> None:
        """``due`` returns what to tell a replica now, None if nothing is due.

        Its last argument is what the replica is being told, and has not answered yet.
        ``hear`` gets what was told and the answer, unless the replica has gone meanwhile.
        """
        self._questions = ReplicaQuestions(fit, self._heard)
        self._due = due
        self._hear = hear
        self.replicas: Replicas = {}

    def turned(self, replicas: Replicas, state: State) -> None:
        """Take over which replicas there are, and what they are to have."""
        self.replicas = replicas
        self._questions.forget_others(set(map(tenant_of, state)))
        self._questions.end_others(self.has)

    def has(self, key: str, run: Run) -> bool:
        """Whether that replica can be told."""
        return run in self.replicas.get(key, {})

    def look(self) -> None:
        """Begin to tell each replica for which something is due."""
        now_s = time.monotonic()
        for key, replicas in self.replicas.items():
            if now_s < self._questions.rests_until_s(key):
                continue
            for run, replica in replicas.items():
                being_told = self._questions.open(key, run)
                if (told := self._due(key, run, replica, now_s, being_told)) is not None:
                    self._questions.begin(key, run, told)

    def _heard(self, key: str, run: Run, told: Replica, answer: _Answer) -> None:
        if self.has(key, run):
            self._hear(key, run, told, answer)
