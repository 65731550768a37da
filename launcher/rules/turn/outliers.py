"""Finds replicas that answer worse than their siblings, and judges them by an inference.

The gateway's figures alone take no replica away: a model may have good reasons to answer with
errors, and some requests take long. They only cast doubt. A replica in doubt is asked an inference,
as at its start, and gets no requests meanwhile if enough of its siblings do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slicewise.cluster.language.service import LONGEST_DEADLINE_S
from slicewise.launcher.rules.engines.engine import Answer, Probe
from slicewise.launcher.rules.gateway.types import Server

COUNTED = 20.0
"""Answers of a replica that count, the newest most."""
FEWEST = 10.0
"""Answers below which a replica is not doubted for its errors."""
MOST, NEARLY_ALL = 0.5, 0.9
"""Shares of errors from which a replica is doubted: beside a sibling that has at most half as many,
and without such a sibling."""
SERVICE_TIMES, FEWEST_SILENT_S = 20, 10.0
"""Mean service times, and seconds at least, without an answer after which a replica is doubted
beside a sibling that answers. Without such a sibling the objective of the service takes the place
of the mean time, which grows while nothing is answered."""
ASKED_S = 10.0
"""Seconds that a replica gets at least to answer the inference."""
REPLACED_S = 60.0
"""Seconds in doubt after which another replica starts beside it; what it has in flight goes on."""
SPAN_S, FEWEST_REMOVALS = 3600.0, 3
"""A service loses at most this many replicas in so many seconds, or one for each of its slots."""
_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 3600.0
_STEP_S = 2.0
"""Seconds that one look counts at most towards a silence."""


@dataclass(frozen=True)
class Doubt:
    """What speaks against a replica.

    Attributes:
        since_s: when it arose, in Unix seconds.
        from_s: since when the replica has answered nothing; ``since_s`` if it answers errors.
        why: for people.
        is_worse: whether its siblings did better: it gets no requests while enough of them do.
        is_out: whether it gets none now.
    """

    since_s: float
    from_s: float
    why: str
    is_worse: bool
    is_out: bool = False


@dataclass(frozen=True)
class Watch:
    """What one run of a slot's replica has answered.

    Attributes:
        start: the run, by job id and start.
        answers, errors, sent_bytes, response_errors: the gateway's counters at the last look.
        recent, recent_errors: the same lately; old answers fade.
        silent_s: seconds for which it had requests and sent nothing: neither an answer nor a
            further part of one.
        seen_s: when the last look was, in Unix seconds.
        moved_s: when it was last seen to have sent something; 0 if it was not yet.
        passed: how often the inference has spoken for it; ``passed_s``: when it last did.
    """

    start: tuple[int, int]
    answers: int
    errors: int
    seen_s: float
    moved_s: float = 0.0
    recent: float = 0.0
    recent_errors: float = 0.0
    silent_s: float = 0.0
    sent_bytes: int = 0
    response_errors: int = 0
    doubt: Doubt | None = None
    passed: int = 0
    passed_s: float = 0.0

    @property
    def is_out(self) -> bool:
        """Whether it is in doubt and gets no requests."""
        return self.doubt is not None and self.doubt.is_out

    def is_outdated(self, now_s: float) -> bool:
        """Whether it has been in doubt for so long that another replica shall start."""
        return self.doubt is not None and now_s - self.doubt.since_s >= REPLACED_S


class Verdict(StrEnum):
    """What became of a replica that stood out."""

    ASKED = "asked"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True)
class Outlier:
    """A replica that stands out at this look, or about which the inference has just decided."""

    index: int
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Sight:
    """A replica that has a server at the gateway, at this look.

    Attributes:
        start: its run, by job id and start.
        serves: whether it gets requests and passes its health checks.
        answer: its answer to the inference; None if it was not asked.
    """

    start: tuple[int, int]
    server: Server
    serves: bool
    answer: Answer | None


@dataclass(frozen=True)
class Bounds:
    """What the service allows.

    Attributes:
        service_s: mean seconds that a request takes.
        deadline_s: seconds that a request may take; None if the service does not say.
        removals: replicas that may still be taken away now.
        p95_s: seconds within which the service's owner wants nearly all requests answered; None if
            that is not stated.
    """

    service_s: float
    deadline_s: float | None
    removals: int
    p95_s: float | None = None

    @property
    def longest_s(self) -> float:
        """Seconds after which the gateway has ended any request that had no byte of an answer."""
        return LONGEST_DEADLINE_S if self.deadline_s is None else self.deadline_s

    def silent_s(self, *, is_worse: bool) -> float:
        """Seconds without an answer after which a replica is doubted, by what its siblings do.

        Where no sibling does better, all requests may take long: only what the owner says counts.
        """
        if is_worse:
            return max(FEWEST_SILENT_S, SERVICE_TIMES * self.service_s)
        if self.p95_s is None:
            return self.longest_s
        return min(self.longest_s, max(FEWEST_SILENT_S, SERVICE_TIMES * self.p95_s))


@dataclass(frozen=True)
class Judgement:
    """What is known from now on, and what has changed."""

    watched: Mapping[int, Watch] = field(hash=False)
    outliers: tuple[Outlier, ...]


def removals_left(removed_s: Sequence[float], slots: int, now_s: float) -> int:
    """Return how many replicas may be taken away now, after those taken away at ``removed_s``."""
    lately = sum(now_s - at_s < SPAN_S for at_s in removed_s)
    return max(0, max(FEWEST_REMOVALS, slots) - lately)


def judge(
    watched: Mapping[int, Watch], sights: Mapping[int, Sight], bounds: Bounds, now_s: float
) -> Judgement:
    """Judge replicas in doubt by their answers, and find new ones; by slot index."""
    watches: dict[int, Watch] = {}
    outliers: list[Outlier] = []
    for index, sight in sights.items():
        watch = _updated(watched.get(index), sight, now_s)
        outlier = _verdict(index, watch, sight.answer, bounds, now_s)
        if outlier is not None:
            outliers.append(outlier)
            passed = watch.passed + (outlier.verdict is Verdict.PASSED)
            watch = _fresh(sight, now_s, passed)
        watches[index] = watch
    judged = {outlier.index for outlier in outliers}
    in_doubt = sum(watch.doubt is not None for watch in watches.values())
    for index, sight in sights.items():
        watch = watches[index]
        if not sight.serves or watch.doubt is not None or index in judged:
            continue
        why, is_worse = _stands_out(index, watches, sights, bounds, now_s)
        if not why or in_doubt >= bounds.removals:
            continue
        in_doubt += 1
        from_s = now_s - watch.silent_s
        watches[index] = replace(watch, doubt=Doubt(now_s, from_s, why, is_worse))
        outliers.append(Outlier(index, Verdict.ASKED, why))
    return Judgement(_taken_out(watches, sights), tuple(outliers))


def _fresh(sight: Sight, now_s: float, passed: int = 0) -> Watch:
    server = sight.server
    passed_s = now_s if passed else 0.0
    return Watch(
        sight.start,
        server.answers,
        server.errors,
        now_s,
        sent_bytes=server.sent_bytes,
        response_errors=server.response_errors,
        passed=passed,
        passed_s=passed_s,
    )


def _updated(before: Watch | None, sight: Sight, now_s: float) -> Watch:
    server = sight.server
    if before is None or before.start != sight.start or server.answers < before.answers:
        return _fresh(sight, now_s)
    more = server.answers - before.answers
    counted = min(float(more), COUNTED)
    errors = (server.errors - before.errors) * counted / more if more else 0.0
    keep = COUNTED / (COUNTED + counted)
    step_s = min(max(0.0, now_s - before.seen_s), _STEP_S) if server.in_flight else 0.0
    # A stream begins its answer once, and may go on for minutes. The gateway's own answers, in the
    # place of those that did not come, are bytes of the server, too.
    is_own = server.response_errors > before.response_errors
    moves = bool(more) or (server.sent_bytes > before.sent_bytes and not is_own)
    return replace(
        before,
        answers=server.answers,
        errors=server.errors,
        seen_s=now_s,
        moved_s=now_s if moves else before.moved_s,
        recent=keep * before.recent + counted,
        recent_errors=keep * before.recent_errors + errors,
        silent_s=0.0 if moves else before.silent_s + step_s,
        sent_bytes=server.sent_bytes,
        response_errors=server.response_errors,
    )


def _verdict(
    index: int, watch: Watch, answer: Answer | None, bounds: Bounds, now_s: float
) -> Outlier | None:
    """Return what the inference says; None while it says nothing, or if there is no doubt.

    What has answered nothing at all for as long as a request may take has failed.
    """
    doubt = watch.doubt
    if doubt is None:
        return None
    answer_seen = answer or Answer(Probe.SILENT)
    if answer_seen.probe is Probe.OURS:
        return Outlier(index, Verdict.PASSED, doubt.why)
    if answer_seen.is_failure or answer_seen.probe is Probe.STRANGER:
        return Outlier(index, Verdict.FAILED, f"{doubt.why}, and an inference failed")
    if doubt.from_s < doubt.since_s < watch.moved_s:
        return Outlier(index, Verdict.PASSED, doubt.why)
    is_late = now_s - doubt.from_s >= bounds.longest_s and now_s - doubt.since_s >= ASKED_S
    if is_late and watch.moved_s <= doubt.since_s:
        return Outlier(index, Verdict.FAILED, f"{doubt.why}, nor an inference")
    return None


def _stands_out(
    index: int,
    watched: Mapping[int, Watch],
    sights: Mapping[int, Sight],
    bounds: Bounds,
    now_s: float,
) -> tuple[str, bool]:
    """Return why the replica is doubted, "" if it is not, and whether its siblings do better."""
    watch = watched[index]
    pause_s = min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** min(watch.passed - 1, 10))
    if watch.passed and now_s - watch.passed_s < pause_s:
        return "", False
    siblings = [watched[other] for other, seen in sights.items() if other != index and seen.serves]
    if watch.recent >= FEWEST:
        share = watch.recent_errors / watch.recent
        is_worse = any(
            sibling.recent >= 1 and sibling.recent_errors <= share / 2 * sibling.recent
            for sibling in siblings
        )
        if share >= (MOST if is_worse else NEARLY_ALL):
            errors = f"{watch.recent_errors:.0f} of its last {watch.recent:.0f} answers"
            return f"{errors} were errors (5xx, gRPC)", is_worse
    is_worse = any(now_s - sibling.moved_s <= watch.silent_s / 2 for sibling in siblings)
    if watch.silent_s >= bounds.silent_s(is_worse=is_worse):
        return f"it has answered nothing for {watch.silent_s:.0f} s", is_worse
    return "", False


def _taken_out(watched: Mapping[int, Watch], sights: Mapping[int, Sight]) -> Mapping[int, Watch]:
    """Decide which replicas in doubt get no requests now, the longest in doubt first.

    At least half of the replicas go on: where a sibling has gone, one in doubt comes back.
    """
    worse = {
        index: watch.doubt
        for index, watch in watched.items()
        if watch.doubt and watch.doubt.is_worse
    }
    others = sum(seen.serves and index not in worse for index, seen in sights.items())
    most = (len(worse) + others) // 2
    out = sorted(worse, key=lambda index: (worse[index].since_s, index))[:most]
    return {
        index: watch
        if watch.doubt is None
        else replace(watch, doubt=replace(watch.doubt, is_out=index in out))
        for index, watch in watched.items()
    }
