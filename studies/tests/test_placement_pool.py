"""Tests where requests are placed if instances are cut as requests come."""

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import board
from studies.placement.outlook import outlook
from studies.placement.pool import Gpu, Instance, Pool, Spot

A100 = board("A100-80GB")
EVEN = {"1g.10gb": 4.0, "2g.20gb": 2.0, "3g.40gb": 1.0, "4g.40gb": 1.0, "7g.80gb": 1.0}
SIZES = {name: profile.memory_slices for name, profile in A100.profiles.items()}


def held(*places: tuple[str, int], begun_s: float = 0.0) -> tuple[Instance, ...]:
    return tuple(
        Instance(Placement(profile, start, SIZES[profile]), begun_s) for profile, start in places
    )


def pool(*gpus: Gpu, mix: dict[str, float] = EVEN) -> Pool:
    found = Pool(outlook(A100, mix))
    for gpu in gpus:
        found.put(gpu)
    return found


def spot(found: Spot | None) -> tuple[str, str, int]:
    assert found is not None
    return found.gpu.name, found.placement.profile, found.placement.start


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
