"""Tests what the daemon books of what a meter tells."""

from types import SimpleNamespace
from typing import Any

import pytest
from builders.tariffs import BERLIN, local_s
from pydantic import ValidationError
from stand_ins.scripted import job, settings

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.energy import EnergyMeasure, Split
from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.rpc.energy_messages import EnergyPostRequest, ToldHour, ToldPart
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.energy import EnergyBooks, energy_use
from slicewise.slurm_plugin.common.energy_requests import EnergyRequest
from slicewise.slurm_plugin.ledger.energy import WantedEnergy
from slicewise.slurm_plugin.state.node_power import NodePower

pytestmark = pytest.mark.usefixtures("clock")

HOUR = ToldHour(
    hour_s=1_764_500_400,
    gpu_uuid="GPU-1",
    measure=EnergyMeasure.COUNTER,
    model="H200-141GB",
    energy_mj=9,
    covered_ms=60_000,
    checked_mj=0,
    power_mj=0,
    parts=(
        ToldPart(job_id=0, split=Split.IDLE, energy_mj=4),
        ToldPart(job_id=901, split=Split.ALONE, energy_mj=5),
    ),
)
GPU = {"gres/gpu:1g.18gb": "1"}


class Kept:
    """A ledger that remembers what it was told."""

    def __init__(self) -> None:
        self.noted: list[EnergyPostRequest] = []
        self.late = 0
        self.zones: list[str] = []

    def note(self, told: EnergyPostRequest) -> int:
        self.noted.append(told)
        return self.late

    def fold(self, zone: str) -> int:
        self.zones.append(zone)
        return 0


def told(*hours: ToldHour, node: str = "gpu01") -> EnergyPostRequest:
    return EnergyPostRequest(node=node, seen_by="m1", boards=(), hours=hours)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def books(kept: Kept) -> EnergyBooks:
    running = JobState.RUNNING
    state: Any = SimpleNamespace(
        nodes=[SimpleNamespace(name="gpu01")],
        jobs=(
            job(1, running, nodes=("gpu01",), tres=GPU),
            job(2, running, nodes=("gpu01",), tres=GPU),
            job(3, running, nodes=("gpu02",), tres=GPU),
            job(4, running, nodes=("gpu01",), tres={"cpu": "1"}),
            job(5, JobState.ENDED, nodes=("gpu01",), tres=GPU),
        ),
        node_power=NodePower(),
    )
    ledger: Any = SimpleNamespace(energy=kept, tariffs=SimpleNamespace(zone=lambda _: BERLIN))
    return EnergyBooks(ledger, state, ALONE, "UTC")


async def test_a_job_that_opens_no_board_of_its_metered_node_is_seen_with_nothing(
    books: EnergyBooks, kept: Kept
) -> None:
    """Else the table of watts would say of it what it does not take, beside the counter."""
    caller: Any = None
    older = HOUR.model_copy(update={"hour_s": HOUR.hour_s - 3600})
    await books.note(told(older, HOUR), caller)
    (noted,) = kept.noted
    assert [len(hour.parts) for hour in noted.hours] == [2, 3]
    assert noted.hours[1].parts[-1] == ToldPart(job_id=902, split=Split.ALONE, energy_mj=0)
    await books.note(told(), caller)
    assert kept.noted[-1].hours == ()


async def test_hours_that_are_not_kept_are_said_once_a_node(
    books: EnergyBooks, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    caller: Any = None
    for kept.late in (0, 3, 4):
        await books.note(told(HOUR), caller)
    assert [line.getMessage() for line in caplog.records] == ["energy_not_kept node=gpu01 hours=3"]


async def test_days_are_those_of_money(books: EnergyBooks, kept: Kept) -> None:
    """What is asked of days and summed by them is by the tariffs' time zone, not the ledger's."""
    caller: Any = None
    await books.note(told(HOUR), caller)
    assert kept.zones == [BERLIN]
    wanted = list[WantedEnergy]()
    energy = SimpleNamespace(
        rows=lambda asked: wanted.append(asked) or (), unmeasured=lambda *_: ()
    )
    ledger: Any = SimpleNamespace(
        energy=energy, tariffs=SimpleNamespace(zone={"UTC": BERLIN}.__getitem__)
    )
    # A month of the ledger's, an hour later than that of the tariffs: its days but the first.
    begin_s, end_s = local_s("2026-11-01 00:00", "UTC"), local_s("2026-12-01 00:00", "UTC")
    request = EnergyRequest(since_s=begin_s, until_s=end_s)
    energy_use(request, Principal(0, "root", None), ledger, settings(), {})
    (asked,) = wanted
    assert (asked.zone, asked.since_s, asked.until_s) == (
        *(BERLIN, local_s("2026-11-02 00:00"), local_s("2026-12-02 00:00")),
    )


async def test_a_node_that_slurm_does_not_have_is_refused(books: EnergyBooks, kept: Kept) -> None:
    caller: Any = None
    with pytest.raises(InvalidInputError, match="gpu09"):
        await books.note(told(HOUR, node="gpu09"), caller)
    assert kept.noted == []


def test_an_hour_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="twice"):
        told(HOUR, HOUR)
