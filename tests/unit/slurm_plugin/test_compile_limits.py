from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.errors import OutsideError
from cluster.slurm.interface import Association, Qos
from cluster.units import Millislices
from slurm_plugin.compile import compile_limits
from slurm_plugin.decide.model import Quota

QUOTAS = {"vision": Quota("vision", Millislices(6000))}


class SlurmDatabase:
    """sacctmgr's part that matters: what is shown, what is changed, what users inherit."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.account = Association("c", "vision", "", "root", frozenset({"normal"}), "", {})
        self.known: dict[str, Qos] = {}
        self.batches: list[tuple[Sequence[str], ...]] = []
        self.deaf = deaf

    async def associations(self) -> tuple[Association, ...]:
        user = replace(self.account, user="alice", parent="", grp_tres={})
        return self.account, user

    async def qos(self) -> tuple[Qos, ...]:
        return tuple(self.known.values())

    async def sacctmgr(self, changes: Sequence[Sequence[str]]) -> None:
        self.batches.append(tuple(changes))
        for change in changes:
            self._take(change[:2], change[-1])

    def _take(self, what: Sequence[str], assignment: str) -> None:
        key, _, value = assignment.partition("=")
        if self.deaf:
            return
        if tuple(what) == ("add", "qos"):
            self.known[assignment] = Qos(assignment, {}, frozenset())
        elif key == "grptres":
            limit = {"billing": int(value.removeprefix("billing="))}
            self.account = replace(self.account, grp_tres=limit)
        elif key == "qos+":
            self.account = replace(self.account, qos=self.account.qos | {value})
        elif key == "defaultqos":
            self.account = replace(self.account, default_qos=value)


async def test_applies_until_nothing_is_left_and_then_does_nothing():
    slurm = SlurmDatabase()
    applied = await compile_limits(slurm, QUOTAS, "c")  # type: ignore[arg-type]
    assert len(applied) == 4
    assert await compile_limits(slurm, QUOTAS, "c") == ()  # type: ignore[arg-type]
    assert len(slurm.batches) == 1
    assert slurm.account.grp_tres == {"billing": 6000}
    assert slurm.account.default_qos == "slicewise_vision"


async def test_says_so_if_slurm_does_not_take_it():
    with pytest.raises(OutsideError, match="SW-LIMITS-UNSETTLED"):
        await compile_limits(SlurmDatabase(deaf=True), QUOTAS, "c")  # type: ignore[arg-type]
