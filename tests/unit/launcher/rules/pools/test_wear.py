"""Tests when a replica of a pool is worn."""

from dataclasses import replace

import pytest

from slicewise.launcher.rules.pools.server_memory import ServerMemory
from slicewise.launcher.rules.pools.types import ReplicaModels, Told
from slicewise.launcher.rules.pools.wear import MOST_LOADS, SETTLES_S, with_wear

HAS = ServerMemory(host_mib=8000, gpu_mib=16_000)
FIRST = ServerMemory(host_mib=1000, gpu_mib=3000)
NEW = Told(start_s=1000)
LATER_S = NEW.start_s + SETTLES_S


def telling(host_mib: int = 0, gpu_mib: int = 0, *, loads: int = 1) -> ReplicaModels:
    return ReplicaModels(loads=loads, memory=ServerMemory(host_mib, gpu_mib))


def is_worn(
    *heard: ReplicaModels, others_mib: int = 0, has: ServerMemory = HAS, now_s: float = LATER_S
) -> bool:
    told = NEW
    for answer in heard:
        told = with_wear(told, answer, others_mib, has, now_s)
    return told.is_worn


def test_by_loads_from_the_hundred_and_first_on():
    assert not is_worn(telling(loads=MOST_LOADS))
    assert is_worn(telling(loads=MOST_LOADS + 1), now_s=NEW.start_s)


def test_one_that_is_worn_stays_so_and_no_later_launcher_counts_less():
    worn = with_wear(NEW, telling(loads=MOST_LOADS + 1), 0, HAS, LATER_S)
    again = with_wear(worn, telling(loads=2), 0, HAS, LATER_S)
    assert (again.is_worn, again.loads) == (True, MOST_LOADS + 1)


@pytest.mark.parametrize(
    ("host_mib", "gpu_mib", "others_mib", "worn"),
    [
        (3000, 3000, 0, False),
        (3001, 3000, 0, True),
        (1000, 7000, 0, False),
        (1000, 7001, 0, True),
        # What models account for is no loss.
        (5000, 9000, 2000, False),
        (5001, 9000, 2000, True),
        (5000, 9001, 2000, True),
        (500, 2000, 0, False),
    ],
)
def test_by_a_quarter_of_its_memory_beyond_what_its_models_account_for(
    host_mib: int, gpu_mib: int, others_mib: int, worn: bool
):
    first = telling(FIRST.host_mib, FIRST.gpu_mib)
    told = with_wear(NEW, first, 0, HAS, LATER_S)
    after = with_wear(told, telling(host_mib, gpu_mib), others_mib, HAS, LATER_S)
    assert after.is_worn == worn


def test_models_that_take_less_than_they_say_hide_nothing_for_ever():
    told = with_wear(NEW, telling(1000), 0, HAS, LATER_S)
    told = with_wear(told, telling(4000), 6000, HAS, LATER_S)
    assert not told.is_worn
    assert with_wear(told, telling(4000), 0, HAS, LATER_S).is_worn


def test_what_fills_in_its_first_hour_is_no_loss_and_what_grows_later_is():
    """Each successor fills as well, and would be replaced without end."""
    told = NEW
    for host_mib in (1000, 7000):
        told = with_wear(told, telling(host_mib), 0, HAS, LATER_S - 1)
        assert not told.is_worn
    for host_mib, worn in ((7000, False), (9000, False), (9001, True)):
        told = with_wear(told, telling(host_mib), 0, HAS, LATER_S)
        assert told.is_worn == worn


def test_models_of_its_first_hour_hide_no_loss_whichever_memory_they_take():
    """They take 6000 MiB of the GPU, and nothing of the node's memory."""
    told = with_wear(NEW, telling(1000, 3000), 0, HAS, LATER_S - 1)
    told = with_wear(told, telling(1200, 9000), 6000, HAS, LATER_S - 1)
    assert told.first == ServerMemory(1000, 3000)
    told = with_wear(told, telling(1200, 3000), 0, HAS, LATER_S)
    assert not told.is_worn
    assert with_wear(told, telling(1000, 7001), 0, HAS, LATER_S).is_worn


def test_what_its_models_take_is_not_known_then_it_is_not_judged_by_memory_but_by_loads():
    told = with_wear(NEW, telling(7000), None, HAS, LATER_S - 1)
    assert told.first == ServerMemory()
    told = with_wear(told, telling(1000), 0, HAS, LATER_S - 1)
    assert not with_wear(told, telling(7000), None, HAS, LATER_S).is_worn
    assert with_wear(told, telling(7000), 0, HAS, LATER_S).is_worn
    assert with_wear(told, telling(loads=MOST_LOADS + 1), None, HAS, LATER_S).is_worn


def test_what_is_not_known_is_no_loss():
    assert not is_worn(telling(), telling(), telling(1000), telling())
    # Doors of an earlier version tell nothing, and an own driver may begin to answer later.
    assert not is_worn(telling(1000), telling(1000, 15_000))
    assert not is_worn(telling(1000, 3000), telling(1000, 15_000), has=replace(HAS, gpu_mib=0))
