from dataclasses import replace

import pytest

from cluster.mig.layouts import Placement
from cluster.mig_profiles import board
from slurm_plugin.decide.mig.fragmentation import fragmentation, outlook
from slurm_plugin.decide.mig.placement import Gpu, Instance, Pool, Spot, victims

A100 = board("A100-80GB")
EVEN = {"1g.10gb": 4.0, "2g.20gb": 2.0, "3g.40gb": 1.0, "4g.40gb": 1.0, "7g.80gb": 1.0}
SIZES = {name: profile.memory_slices for name, profile in A100.profiles.items()}


def held(
    *places: tuple[str, int], begun_s: float = 0.0, may_go: bool = True
) -> tuple[Instance, ...]:
    return tuple(
        Instance(Placement(profile, start, SIZES[profile]), begun_s, may_go)
        for profile, start in places
    )


def pool(*gpus: Gpu, mix: dict[str, float] = EVEN) -> Pool:
    found = Pool(outlook(A100, mix))
    for gpu in gpus:
        found.put(gpu)
    return found


def spot(found: Spot | None) -> tuple[str, str, int]:
    assert found is not None
    return found.gpu.name, found.placement.profile, found.placement.start


def test_an_empty_gpu_is_not_fragmented_and_a_full_one_serves_nobody():
    seen = outlook(A100, EVEN)
    full = seen.geometry.occupancy([Placement("7g.80gb", 0, 8)])
    assert seen.unserved[0] == 0
    assert full is not None
    assert seen.unserved[full] == pytest.approx(1)
    assert fragmentation(seen, [0, full, full]) == pytest.approx(2 / 3)
    assert fragmentation(seen, []) == 0


def test_unserved_is_the_part_of_the_demand_of_which_nothing_fits():
    seen = outlook(A100, {"1g.10gb": 3.0, "3g.40gb": 2.0, "4g.40gb": 0.0})
    used = seen.geometry.occupancy([Placement("1g.10gb", 0, 1), Placement("1g.10gb", 4, 1)])
    assert used is not None
    assert seen.expected == ("1g.10gb", "3g.40gb")
    assert seen.places[used] == (5, 0)
    assert seen.unserved[used] == pytest.approx(2 / 5)
    assert seen.stranded[used] == pytest.approx(6 * 2 / 5)


def test_the_last_places_are_worth_most_and_more_than_will_be_asked_for_nothing():
    seen = outlook(A100, {"1g.10gb": 15.0, "7g.80gb": 1.0})
    small, large = seen.losses([3, 1])
    assert small[1] == pytest.approx(1000, abs=1)
    assert small[2] > small[1]
    assert large[1] == pytest.approx(7000 * (1 - (15 / 16) ** 16))
    assert all(loss == 0 for loss in seen.losses([40, 40])[0])


def test_without_a_forecast_all_profiles_are_alike():
    assert outlook(A100, {}) == outlook(A100, dict.fromkeys(A100.profiles, 2.0))


def test_a_small_instance_goes_where_the_large_ones_keep_their_room():
    empty, used = Gpu("a", "n1"), Gpu("b", "n1", held(("1g.10gb", 0)))
    assert spot(pool(empty, used).best(["1g.10gb"])) == ("b", "1g.10gb", 1)


def test_small_ones_fill_a_used_gpu_however_many_of_them_are_expected():
    mix = {"1g.10gb": 50.0, "7g.80gb": 1.0}
    used = Gpu("b", "n1", held(("4g.40gb", 0)))
    found = pool(Gpu("a", "n1"), used, Gpu("c", "n1"), mix=mix)
    assert spot(found.best(["1g.10gb"])) == ("b", "1g.10gb", 4)


def test_a_3g_leaves_the_half_that_a_4g_needs():
    assert spot(pool(Gpu("a", "n1")).best(["3g.40gb"])) == ("a", "3g.40gb", 4)


def test_among_alike_gpus_the_one_with_the_oldest_instance_is_taken():
    young = Gpu("a", "n1", held(("4g.40gb", 0), begun_s=900))
    old = Gpu("b", "n2", held(("4g.40gb", 0), begun_s=100))
    assert spot(pool(young, old).best(["3g.40gb"])) == ("b", "3g.40gb", 4)


def test_of_several_profiles_that_would_do_the_one_that_costs_the_others_least():
    half = Gpu("a", "n1", held(("4g.40gb", 0), ("1g.10gb", 4)))
    assert spot(pool(half).best(["2g.20gb", "1g.20gb"])) == ("a", "1g.20gb", 6)


def test_nothing_is_found_where_nothing_fits():
    full = Gpu("a", "n1", held(("7g.80gb", 0)))
    assert pool(full).best(["1g.10gb"]) is None
    assert pool().best(["1g.10gb"]) is None
    assert pool(Gpu("a", "n1")).best(["1g.5gb"]) is None


def test_a_gpu_is_where_it_was_put_last_until_it_is_dropped():
    found = pool(Gpu("a", "n1"))
    found.put(Gpu("a", "n1", held(("7g.80gb", 0))))
    assert found.best(["1g.10gb"]) is None
    found.put(Gpu("a", "n1"))
    assert found.best(["7g.80gb"]) is not None
    found.drop("a")
    found.drop("a")
    assert found.best(["1g.10gb"]) is None


def test_a_gpu_that_is_cut_as_no_table_knows_takes_nothing_more():
    strange = Gpu("a", "n1", (Instance(Placement("2g.20gb", 1, 2), 0.0),))
    found = pool(strange)
    assert found.best(["1g.10gb"]) is None
    found.drop("a")


def test_nodes_are_named_once_and_the_best_comes_first():
    found = pool(
        Gpu("a", "empty"),
        Gpu("b", "used", held(("4g.40gb", 0))),
        Gpu("c", "used", held(("4g.40gb", 0))),
        Gpu("d", "full", held(("7g.80gb", 0))),
    )
    assert found.nodes("3g.40gb") == ("used", "empty")


def test_the_fewest_slices_are_taken_away_and_then_the_fewest_and_youngest_instances():
    seen = outlook(A100, EVEN)
    two = Gpu("a", "n1", held(("2g.20gb", 4), ("4g.40gb", 0)))
    many = Gpu("b", "n1", held(("1g.10gb", 4), ("1g.10gb", 5), ("4g.40gb", 0)))
    young = Gpu("c", "n1", held(("2g.20gb", 4), ("4g.40gb", 0), begun_s=50))
    small = Gpu("d", "n1", held(("1g.10gb", 4), ("4g.40gb", 0), may_go=False))
    found = victims(seen, [two, many, young, small], "3g.40gb")
    assert found is not None
    assert found.gpu is young
    assert [one.placement.profile for one in found.instances] == ["2g.20gb"]
    willing = replace(small, instances=held(("1g.10gb", 4), ("4g.40gb", 0)))
    found = victims(seen, [two, willing], "3g.40gb")
    assert found is not None
    assert found.gpu is willing


def test_nobody_goes_where_it_fits_already_or_where_one_must_stay():
    seen = outlook(A100, EVEN)
    free = victims(seen, [Gpu("a", "n1")], "7g.80gb")
    assert free is not None
    assert free.instances == ()
    assert victims(seen, [Gpu("a", "n1", held(("1g.10gb", 0), may_go=False))], "7g.80gb") is None


def test_media_extensions_are_taken_from_their_only_holder():
    seen = outlook(A100, {})
    holder = Gpu("a", "n1", held(("1g.10gb+me", 0), ("1g.10gb", 1)))
    found = victims(seen, [holder], "1g.10gb+me")
    assert found is not None
    assert [one.placement.profile for one in found.instances] == ["1g.10gb+me"]
