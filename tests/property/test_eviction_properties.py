"""Property: a lender whose work comes and goes does not make replicas start and go in turn."""

from collections.abc import Sequence
from itertools import pairwise

from builders.service_views import a_service, a_slot
from hypothesis import given
from hypothesis import strategies as st
from stand_ins.clock import Clock

from slicewise.cluster.language.leader import ALONE
from slicewise.slurm_plugin.rules.services.eviction import AGAIN_S, REST_S, Evictions

LENDER, BORROWER = "vision", "nlp"
JOB_ID, ENDS_S, GRACE_S = 7, 3, 60.0
"""``ENDS_S``: seconds that a replica takes to go."""
WORK = st.lists(st.tuples(st.integers(5, 90), st.integers(1, 400)), min_size=1, max_size=12)
"""Seconds of each work of the lender, which needs the slice, and of the pause behind it."""


class Replica:
    """A replica on the lender's slice that its service wants all the time.

    Attributes:
        starts_s: when it has started.
        overs_s: when the lender had what it took back.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.evictions = Evictions(ALONE, self.clock)
        self.starts_s: list[float] = []
        self.overs_s: list[float] = []
        self.gone_s: float | None = 0.0

    def second(self, *, works: bool) -> None:
        now_s, evictions = self.clock.now_s, self.evictions
        runs = self.gone_s is None or now_s < self.gone_s
        slots = [a_slot(state="running", job_id=JOB_ID, start_s=1)] if runs and works else []
        victims = dict.fromkeys([(JOB_ID, 1)] if slots else [], "it is taken back")
        view = a_service(tenant=BORROWER, slots=tuple(slots))
        if evictions.end(victims, {}, (view,), GRACE_S):
            self.gone_s = now_s + ENDS_S
        if evictions.has_waiting:
            evictions.wait_on((), [LENDER] if slots else ())
            if not evictions.has_waiting:
                self.overs_s.append(now_s)
        if not (runs or works or evictions.waits(BORROWER)):
            self.starts_s.append(now_s)
            self.gone_s = None
        self.clock.now_s += 1


def played(work: Sequence[tuple[int, int]]) -> Replica:
    replica = Replica()
    replica.second(works=False)
    for busy_s, idle_s in work:
        for second in range(busy_s + idle_s):
            replica.second(works=second < busy_s)
    return replica


@given(WORK)
def test_it_starts_again_at_once_unless_it_has_just_gone_for_a_lender(
    work: list[tuple[int, int]],
) -> None:
    replica = played(work)
    again = {
        later_s for before_s, later_s in pairwise(replica.overs_s) if later_s - before_s < AGAIN_S
    }
    for over_s in replica.overs_s:
        start_s = min((at_s for at_s in replica.starts_s if at_s >= over_s), default=None)
        assert start_s is None or start_s >= over_s + REST_S * (over_s in again)
    for first_s, _, third_s in zip(
        replica.starts_s, replica.starts_s[1:], replica.starts_s[2:], strict=False
    ):
        assert third_s - first_s >= REST_S


@given(WORK)
def test_no_lender_that_rests_keeps_it_from_starting(work: list[tuple[int, int]]) -> None:
    replica = played([*work, (5, int(REST_S) + 1)])
    assert replica.gone_s is None
    first_s, _ = work[0]
    assert replica.starts_s[1] == first_s + 1, "after the first time it waits for nothing more"
