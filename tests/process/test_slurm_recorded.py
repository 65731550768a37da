"""Tests each implementation of the interface to Slurm on one recorded moment of a cluster."""

import asyncio
from collections.abc import Mapping

import pytest
from slurm_contract import Look, SlurmContract, assert_same, look
from stand_ins.pyslurm_stand_in import stand_in

from slicewise.cluster.language.slurm.unread import ignored
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.pyslurm_client import PyslurmSlurm

VERSIONS = ("25.11.7",)
DOORS = ("commands", "pyslurm")
# The ids of the arrays and jobs when it was recorded.
SCENE = frozenset({1, 2, 3, 4, 5})


@pytest.fixture(scope="module", params=VERSIONS)
def looks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Look]:
    with pytest.MonkeyPatch.context() as patch:
        stand_in(tmp_path_factory.mktemp("slurm"), request.param, patch)
        return asyncio.run(_looks())


async def _looks() -> Mapping[str, Look]:
    troubles: list[Mapping[str, object]] = []
    slurm = PyslurmSlurm(
        lambda *_, **__: None, lambda *_, **fields: troubles.append(fields), ignored
    )
    by_pyslurm = await look(slurm, SCENE)
    await slurm.close()
    assert troubles == []
    return {"commands": await look(CommandSlurm(), SCENE), "pyslurm": by_pyslurm}


@pytest.fixture(params=DOORS)
def seen(request: pytest.FixtureRequest, looks: Mapping[str, Look]) -> Look:
    return looks[request.param]


class TestRecorded(SlurmContract):
    def test_gpus_are_those_of_the_request_and_of_the_allocation(self, seen: Look) -> None:
        for job in seen.slots.values():
            gpus = {name: count for name, count in job.tres.items() if name.startswith("gres/")}
            assert gpus == {"gres/gpu": "1", "gres/gpu:1g.10gb": "1"}
        assert seen.slots[0].tres["billing"] == "1000"

    def test_all_doors_say_the_same(self, looks: Mapping[str, Look]) -> None:
        assert_same(looks["pyslurm"], looks["commands"])
