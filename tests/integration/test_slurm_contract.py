"""Every door to Slurm that works here, at the same moment, on a real cluster."""

import asyncio
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

import pytest
from slurm_contract import Look, SlurmContract, assert_same, look, scene_on

from cluster.slurm.unread import ignored
from cluster.slurm_client.commands import CommandSlurm
from cluster.slurm_client.pyslurm_client import PyslurmSlurm
from sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

DOORS = ("commands", "pyslurm") if find_spec("pyslurm") else ("commands",)
UNFIT = ("pyslurm is for Slurm", "pyslurm of Slurm", "ImportError")


@pytest.fixture(scope="module")
def looks(sandbox: Sandbox, without_admission: None) -> Iterator[Mapping[str, Look]]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sandbox.environment("root").items():
            patch.setenv(name, value)
        scene, found = asyncio.run(_looks(sandbox))
        yield found
        sandbox.run("root", ("scancel", *map(str, scene)))


async def _looks(sandbox: Sandbox) -> tuple[frozenset[int], Mapping[str, Look]]:
    async with scene_on(sandbox) as scene:
        return scene, await _looks_at(scene)


async def _looks_at(scene: frozenset[int]) -> Mapping[str, Look]:
    found = {"commands": await look(CommandSlurm(), scene)}
    if "pyslurm" in DOORS:
        troubles: list[Mapping[str, object]] = []
        slurm = PyslurmSlurm(
            lambda *_, **__: None, lambda *_, **fields: troubles.append(fields), ignored
        )
        found["pyslurm"] = await look(slurm, scene)
        await slurm.close()
        # One that is of another Slurm asks the commands.
        assert [one for one in troubles if not str(one["why"]).startswith(UNFIT)] == []
    return found


@pytest.fixture(params=DOORS)
def seen(request: pytest.FixtureRequest, looks: Mapping[str, Look]) -> Look:
    return looks[request.param]


class TestOnACluster(SlurmContract):
    def test_all_doors_say_the_same(self, looks: Mapping[str, Look], seen: Look) -> None:
        assert_same(seen, looks["commands"])
