"""Answers submissions from memory: decides each on the newest snapshot."""

import secrets
import time
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import TypeVar

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.rpc.messages import CheckRequest, SubmitAnswer, SubmitRequest
from slicewise.slurm_plugin.rules.admission.rules import (
    AdmissionDecision,
    Mode,
    as_mode_allows,
    check_membership,
    decide,
    refused,
    submission_of,
)
from slicewise.slurm_plugin.rules.admission.snapshot import Recent, Snapshot
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed
from slicewise.slurm_plugin.rules.common.uninstalled import UNINSTALLED
from slicewise.slurm_plugin.rules.services.rate_limit import (
    RateLimit,
    RateUse,
    after_change,
    wait_s,
)

_REMEMBERED_S = 2.0
"""Seconds for which an admitted job counts although Slurm doesn't show it: its submission may still
fail for reasons of Slurm's own."""
_REMEMBERED = 10_000
SUBMISSIONS = RateLimit(at_once=60, every_s=60.0)
"""Of one user's services: each is a lasting row, with a script that slurmctld keeps."""


@dataclass(frozen=True)
class _Admitted:
    at_s: float
    token: str
    tenant: str
    service: str | None
    uid: int
    cost_millislices: int
    is_guaranteed: bool
    instances: Mapping[str, int] = field(default_factory=dict, hash=False)


_K = TypeVar("_K", bound=Hashable)


class Admission:
    """Answers submissions, and adds to the snapshot what it has admitted since the last look at
    Slurm.

    For use by one thread.
    """

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._snapshot: Snapshot | None = None
        self._admitted: deque[_Admitted] = deque()
        self._used: Counter[str] = Counter()
        self._guaranteed: Counter[str] = Counter()
        self._services: Counter[tuple[str, str, int]] = Counter()
        self._instances: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._submitted: dict[int, RateUse] = {}
        self._recent = Recent(self._used, self._guaranteed, self._services, self._instances)

    def publish(self, snapshot: Snapshot, looked_s: float) -> None:
        """Decide on this snapshot from now on.

        ``looked_s`` is when its look at Slurm began, by the monotonic clock: all processes of a
        host share it, and nobody sets it.
        """
        self._snapshot = snapshot
        since_s = looked_s - _REMEMBERED_S
        for _ in range(len(self._admitted)):
            admitted = self._admitted.popleft()
            # Slurm may show a service's array before the daemon has read its script.
            is_shown = admitted.token in snapshot.newest and admitted.service is None
            if is_shown or admitted.at_s <= since_s:
                self._count(admitted, -1)
            else:
                self._admitted.append(admitted)
        shown = {(*key, living.uid) for key, living in snapshot.services.items()}
        for service in self._services.keys() & shown:
            del self._services[service]

    def submit(self, request: SubmitRequest) -> SubmitAnswer:
        """Answer, and count what is admitted."""
        return self.decided(request)[0]

    def decided(self, request: SubmitRequest) -> tuple[SubmitAnswer, AdmissionDecision | None]:
        """Answer as ``submit`` does; also return what was decided before the mode changed it."""
        answer, decision = self._decide(request)
        if answer.action == "admit" and decision is not None:
            self._remember(decision, request.uid)
        return answer, decision

    def preview(self, request: SubmitRequest) -> SubmitAnswer:
        """The answer that a submission would get; nothing is counted."""
        return self._decide(request)[0]

    def check(self, request: CheckRequest, uid: int) -> SubmitAnswer:
        """The answer that a service's submission would get; nothing is counted.

        Raises InvalidInputError: SW-TENANT-UNKNOWN, SW-DIRECTIVE, SW-SERVICE.
        """
        if self._snapshot is None:
            return _NOT_READY
        submission = submission_of(request, uid, self._snapshot.partitions)
        if uid != 0:
            check_membership(uid, request.tenant, self._snapshot)
        return self.preview(submission)

    def _decide(self, request: SubmitRequest) -> tuple[SubmitAnswer, AdmissionDecision | None]:
        if self._snapshot is None:
            return _NOT_READY, None
        token = request.token or secrets.token_hex(8)
        decision = decide(request, self._snapshot, token, self._recent)
        if _is_service(decision) and (wait := self._wait_s(request.uid)):
            decision = AdmissionDecision(_too_often(wait))
        is_out = self._snapshot.is_uninstalled and self._mode == "enforce"
        if is_out and _is_service(decision):
            return refused(UNINSTALLED), decision
        mode = "observe" if self._snapshot.is_uninstalled else self._mode
        return as_mode_allows(decision.answer, request, mode), decision

    def _wait_s(self, uid: int) -> float:
        """Seconds until this user may submit another service; 0 for root."""
        used = self._submitted.get(uid, RateUse())
        return wait_s(used, SUBMISSIONS, time.monotonic()) if uid else 0.0

    def _remember(self, decision: AdmissionDecision, uid: int) -> None:
        if decision.tag is None:
            return
        if _is_service(decision):
            used = self._submitted.get(uid, RateUse())
            self._submitted[uid] = after_change(used, SUBMISSIONS, time.monotonic())
        tenant, service = decision.tag.tenant, decision.tag.service
        is_guaranteed = not is_borrowed(decision.answer.qos or "")
        # A service's slots are held until they are released: they take nothing yet.
        cost = 0 if service else decision.cost_millislices
        instances = {} if service else decision.instances
        token = decision.tag.token
        admitted = _Admitted(
            time.monotonic(), token, tenant, service, uid, cost, is_guaranteed, instances
        )
        if len(self._admitted) == _REMEMBERED:
            self._count(self._admitted.popleft(), -1)
        self._admitted.append(admitted)
        self._count(admitted, 1)

    def _count(self, admitted: _Admitted, sign: int) -> None:
        _add(self._used, admitted.tenant, sign * admitted.cost_millislices)
        if admitted.is_guaranteed:
            _add(self._guaranteed, admitted.tenant, sign * admitted.cost_millislices)
            for kind, count in admitted.instances.items():
                _add(self._instances[admitted.tenant], kind, sign * count)
        if admitted.service is not None:
            _add(self._services, (admitted.tenant, admitted.service, admitted.uid), sign)


def _is_service(decision: AdmissionDecision) -> bool:
    return decision.tag is not None and decision.tag.service is not None


def _too_often(wait: float) -> SubmitAnswer:
    return refused(
        Refusal(
            Code.RATE,
            f"You submitted services {SUBMISSIONS.at_once} times in a row.",
            f"Once in {SUBMISSIONS.every_s:g} s is allowed: try again in {ceil(wait)} s.",
        )
    )


def _add(counter: Counter[_K], key: _K, amount: int) -> None:
    """Add to a counter, and drop entries of zero or less."""
    counter[key] += amount
    if counter[key] <= 0:
        del counter[key]


_NOT_READY = refused(
    Refusal(Code.DAEMON_DOWN, "The slicewise daemon is still starting.", "Try again.")
)
