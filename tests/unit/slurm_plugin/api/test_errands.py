"""Tests long work that operators order: it is done once, whoever waits for it."""

import asyncio

import pytest

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.slurm_plugin.api import errands
from slicewise.slurm_plugin.api.errands import Errands


class Work:
    """Counts how often it was begun; ends when it is told to."""

    def __init__(self) -> None:
        self.begun, self.may_end = 0, asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        await self.may_end.wait()
        return self.begun


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "PATIENCE_S", 0.01)


async def test_who_waits_too_long_can_ask_again_and_what_was_ordered_is_done_once():
    orders, work = Errands[int](), Work()
    name = orders.begin("compile", work)
    assert await orders.outcome(name) is None
    assert orders.begin("compile", work) == name
    work.may_end.set()
    assert [await orders.outcome(name) for _ in range(2)] == [1, 1]
    again = orders.begin("compile", work)
    assert again != name
    assert await orders.outcome(again) == 2


async def test_another_order_is_another_errand():
    orders, work = Errands[int](), Work()
    work.may_end.set()
    assert orders.begin("compile", work) != orders.begin("compile --again", work)


async def test_a_failure_is_the_outcome():
    async def fails() -> int:
        raise InvalidInputError("SW-UNINSTALLED", "It was taken out.")

    orders = Errands[int]()
    name = orders.begin("compile", fails)
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="SW-UNINSTALLED"):
            await orders.outcome(name)


async def test_a_daemon_does_not_know_what_another_one_was_ordered():
    with pytest.raises(UnreachableError, match=r"Give the same command again.*SW-DAEMON-UNSURE"):
        await Errands[int]().outcome("0123456789abcdef")


async def test_of_many_errands_the_last_ones_are_remembered():
    orders, work = Errands[int](), Work()
    work.may_end.set()
    names = []
    for _ in range(40):
        names.append(orders.begin("compile", work))
        await orders.outcome(names[-1])
    assert await orders.outcome(names[-1]) == 40
    with pytest.raises(UnreachableError, match="SW-DAEMON-UNSURE"):
        await orders.outcome(names[0])
