"""Snapshot → decide → answer: admission from memory."""

import secrets
import threading
import time
from dataclasses import replace

from cluster.errors import Refusal
from cluster.jobs import JobTag
from cluster.wire import CheckRequest, SubmitAnswer, SubmitRequest
from slurm_plugin.decide.admission import (
    Mode,
    Snapshot,
    as_mode_allows,
    check_membership,
    decide,
    refused,
    submission_of,
)

_REMEMBERED_S = 2.0
"""How long a service that was just admitted counts as living though Slurm doesn't show it: its
submission may still fail for reasons of Slurm's own."""


class Admission:
    """Answers submissions; used by the admission thread and by the main one."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._snapshot: Snapshot | None = None
        self._lock = threading.Lock()
        self._just_admitted: dict[tuple[str, str], float] = {}

    def publish(self, snapshot: Snapshot, observed_s: float) -> None:
        """Decide on this one from now on; ``observed_s`` is when the look at Slurm began."""
        with self._lock:
            self._snapshot = snapshot
            self._just_admitted = {
                service: admitted_s
                for service, admitted_s in self._just_admitted.items()
                if service not in snapshot.services and admitted_s > observed_s - _REMEMBERED_S
            }

    def submit(self, request: SubmitRequest) -> SubmitAnswer:
        """Answer, and count a service that is admitted as living."""
        with self._lock:
            answer = self._decide(request)
            service = _service_of(answer)
            if service is not None:
                self._just_admitted[service] = time.time()
        return answer

    def check(self, request: CheckRequest, uid: int) -> SubmitAnswer:
        """What the answer would be; nothing is left behind. May raise InvalidInputError."""
        with self._lock:
            if self._snapshot is None:
                return _NOT_READY
            submission = submission_of(request, uid, self._snapshot.partitions)
            if uid != 0:
                check_membership(uid, request.tenant.lower(), self._snapshot)
            return self._decide(submission)

    def _decide(self, request: SubmitRequest) -> SubmitAnswer:
        if self._snapshot is None:
            return _NOT_READY
        snapshot = self._snapshot
        if request.directives and self._just_admitted:
            known = {**dict.fromkeys(self._just_admitted), **snapshot.services}
            snapshot = replace(snapshot, services=known)
        answer = decide(request, snapshot, secrets.token_hex(8))
        return as_mode_allows(answer, request, self._mode)


_NOT_READY = refused(
    Refusal("SW-DAEMON-DOWN", "The slicewise daemon is still starting.", "Try again.")
)


def _service_of(answer: SubmitAnswer) -> tuple[str, str] | None:
    """Tenant and name of a service that was just admitted."""
    tag = JobTag.find(answer.tag or "")
    return (tag.tenant, tag.service) if tag is not None and tag.service is not None else None
