"""Nodes of simulated sites that fail and are cut again: nothing holds more than there is."""

from collections.abc import Sequence

import pytest
from builders.settings import site_settings
from builders.site_world import BEGIN_S, past, slicewise, tenants
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.simulation.rules.cluster import NodeFailures, SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.past_requests import Replayable, replays
from slicewise.simulation.rules.site.records import SiteRecord
from slicewise.simulation.rules.site.simulated_site import Site, SiteTimes
from slicewise.simulation.rules.snapshot.boards import boards_of, with_pads
from slicewise.simulation.runs.outages import outages

TYPES = ("1g.10gb", "2g.20gb", "3g.40gb")
CUTTING = site_settings(types=list(TYPES), name="test", repartition={"allowed": True})
BOARDS = boards_of({"1g.10gb": 14}, CUTTING)
GPUS = {} if BOARDS is None else with_pads({"1g.10gb": 14}, BOARDS)
ON = SimulatedCluster(
    "test",
    tuple(SimulatedNode(f"n{i}", frozenset({"gpu"}), GPUS, boards=BOARDS) for i in range(2)),
    failures=NodeFailures(12_000.0, 900.0),
)
SIZES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 4}
"""Memory slices, of which a board has eight."""
LAST_S = 15_000.0

jobs_of_shapes = st.lists(
    st.builds(
        lambda name, kind, at_s, run_s: past(name, {kind: 1}, at_s, float(run_s)),
        st.sampled_from(("a", "b")),
        st.sampled_from(TYPES),
        st.integers(0, 9000),
        st.integers(60, 4000),
    ),
    min_size=1,
    max_size=40,
)


def ran(jobs: Sequence[HistoryJob], seed: int) -> SiteRecord:
    times = SiteTimes(BEGIN_S, BEGIN_S + LAST_S, BEGIN_S + LAST_S)
    found = replays(
        enumerate(jobs), Replayable(ON, CUTTING.costs), begin_s=BEGIN_S, end_s=times.last_s
    )
    down = outages(ON, seed, first_s=BEGIN_S, begin_s=BEGIN_S, end_s=times.last_s)
    plan = slicewise(tenants(a=2, b=2), settings=CUTTING)
    return Site(ON, plan, CUTTING.costs, found, times, down=down).run()


@pytest.mark.slow
@given(jobs_of_shapes, st.integers(0, 1000))
@settings(max_examples=examples(15), deadline=None)
def test_nothing_holds_more_than_the_boards_have(jobs: Sequence[HistoryJob], seed: int) -> None:
    record = ran(jobs, seed)
    events = []
    for job in record.jobs:
        (kind,) = jobs[job.number].gpus
        for run in job.runs:
            events.append((run.start_s, SIZES[kind]))
            events.append((run.end_s or BEGIN_S + LAST_S, -SIZES[kind]))
    held = 0
    # What ends within a second lets the next one start in it.
    for _, change in sorted(events):
        held += change
        assert held <= 4 * 8
    for one in record.repartitions or ():
        assert 0 <= one.lost_millislice_s <= (one.end_s - one.begin_s) * 2 * 7500


@pytest.mark.slow
@given(jobs_of_shapes, st.integers(0, 1000))
@settings(max_examples=examples(5), deadline=None)
def test_the_same_seed_gives_the_same_record(jobs: Sequence[HistoryJob], seed: int) -> None:
    assert ran(jobs, seed) == ran(jobs, seed)
