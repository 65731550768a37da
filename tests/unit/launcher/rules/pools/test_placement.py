"""Tests which replica of a pool has which models."""

import pytest

from slicewise.launcher.rules.pools.placement import COPY_S, next_load, place
from slicewise.launcher.rules.pools.types import PoolModel, PoolReplica


def a_replica(
    number: int,
    *models: str,
    memory_mib: int | None = 100,
    refused: tuple[str, ...] = (),
    coming: tuple[str, ...] = (),
) -> PoolReplica:
    """Its first model is its own."""
    return PoolReplica(
        (number, 0), models[0], frozenset(models), frozenset(refused), memory_mib, frozenset(coming)
    )


def a_model(name: str, work: float = 0.0, memory_mib: int = 40, **more: float) -> PoolModel:
    """Without work it has no requests."""
    return PoolModel(name, work, memory_mib, is_asked=work > 0, **more)


def placed(models: list[PoolModel], *replicas: PoolReplica) -> list[str]:
    """The models of each replica, as words in the order of replicas; what has no room last."""
    known = {name for replica in replicas for name in replica.models}
    models += [a_model(name) for name in sorted(known - {model.model for model in models})]
    found = place(models, replicas)
    words = [" ".join(sorted(found.models[replica.place])) for replica in replicas]
    return [*words, *sorted(found.unplaced)]


def test_what_nobody_asks_stays_where_it_is():
    assert placed([], a_replica(1, "a", "b"), a_replica(2, "c")) == ["a b", "c"]


def test_a_model_that_is_asked_goes_to_the_replica_with_the_least_to_do():
    models = [a_model("a", 0.6), a_model("b", 0.2), a_model("new", 0.1)]
    assert placed(models, a_replica(1, "a"), a_replica(2, "b")) == ["a", "b new"]


def test_a_model_that_its_service_keeps_is_placed_without_requests():
    kept = PoolModel("kept", memory_mib=40, is_kept=True)
    assert placed([kept], a_replica(1, "a")) == ["a kept"]


def test_what_costs_least_to_lose_makes_room():
    models = [
        a_model("often", requests_per_s=1.0, load_s=5.0),
        a_model("seldom", requests_per_s=0.01, load_s=5.0),
        a_model("new", 0.5),
    ]
    assert placed(models, a_replica(1, "a", "often", "seldom", memory_mib=130)) == ["a new often"]


def test_a_model_that_others_have_too_makes_room_before_the_last_of_its_kind():
    models = [a_model("twice", requests_per_s=9.0), a_model("once", requests_per_s=0.1)]
    full, other = a_replica(1, "a", "twice", "once", memory_mib=130), a_replica(2, "b", "twice")
    assert placed([*models, a_model("new", 0.5, memory_mib=41)], full, other)[0] == "a new once"


def test_neither_its_own_model_nor_one_in_use_makes_room():
    models = [a_model("used", 0.5), a_model("new", 0.6)]
    assert placed(models, a_replica(1, "a", "used")) == ["a used", "new"]


def test_a_model_with_much_more_work_takes_the_place_of_one_with_little():
    models = [a_model("used", 0.1), a_model("new", 3.0)]
    assert placed(models, a_replica(1, "a", "used")) == ["a new", "used"]


def test_a_model_that_waits_long_takes_the_place_of_one_with_as_much_work():
    models = [a_model("used", 0.5), a_model("new", 0.5, waited_s=15.0)]
    assert placed(models, a_replica(1, "a", "used")) == ["a new", "used"]


def test_what_has_no_request_now_makes_room_for_what_has():
    often = PoolModel("often", 0.9, 40, requests_per_s=1.0)
    assert placed([often, a_model("new", 0.1)], a_replica(1, "a", "often")) == ["a new"]


def test_a_model_that_no_replica_can_hold_has_no_room():
    assert placed([a_model("large", 1.0, memory_mib=90)], a_replica(1, "a")) == ["a", "large"]


def test_a_replica_that_has_refused_a_model_does_not_get_it():
    models = [a_model("bad", 1.0)]
    first, other = a_replica(1, "a", refused=("bad",)), a_replica(2, "b")
    assert placed(models, first, other) == ["a", "b bad"]
    assert placed(models, first) == ["a b", "bad"]


def test_memory_that_is_not_known_takes_all():
    models = [a_model(name, 0.1, memory_mib=999) for name in "bcd"]
    assert placed(models, a_replica(1, "a", memory_mib=None)) == ["a b c d"]


def test_a_second_replica_helps_a_model_with_more_work_than_one_can_do():
    assert placed([a_model("a", 2.0)], a_replica(1, "a"), a_replica(2, "b")) == ["a", "a b"]


def test_a_light_model_moves_away_from_a_noisy_one():
    models = [a_model("noisy", 1.6), a_model("light", 0.3), a_model("b", 0.1)]
    noisy, other = a_replica(1, "noisy", "light"), a_replica(2, "b", "light")
    words = placed(models, noisy, other)
    assert "light" not in words[0]


def test_nothing_moves_where_all_are_full_alike():
    models = [a_model("a", 1.5), a_model("b", 1.5)]
    assert placed(models, a_replica(1, "a", "b"), a_replica(2, "b", "a")) == ["a b", "a b"]


def test_memory_that_is_left_has_copies_of_what_is_asked_most():
    models = [
        a_model("often", requests_per_s=0.5),
        a_model("seldom", requests_per_s=0.1),
        a_model("never"),
        a_model("a", 0.8),
    ]
    old = a_replica(1, "a", "often", "seldom", "never", memory_mib=160)
    assert placed(models, old, a_replica(2, "b"))[1] == "b often"
    assert placed(models, old, a_replica(2, "b", memory_mib=160))[1] == "b often seldom"
    assert placed(models, old, a_replica(2, "b", refused=("often",)))[1] == "b seldom"
    assert placed(models, old, a_replica(2, "b", memory_mib=None))[1] == "b"


def test_what_no_replica_has_is_loaded_before_a_second_copy():
    models = [a_model("often", 0.3, requests_per_s=0.5), a_model("lost", requests_per_s=0.1)]
    assert placed(models, a_replica(1, "often"), a_replica(2, "b")) == ["lost often", "b often"]


def test_what_nobody_has_asked_yet_is_loaded_once_after_copies_of_what_is_asked():
    models = [a_model("often", 0.5, requests_per_s=0.5), a_model("never")]
    assert placed(models, a_replica(1, "often"), a_replica(2, "b")) == ["never often", "b often"]
    small = a_replica(2, "b", memory_mib=80)
    assert placed(models, a_replica(1, "often", memory_mib=40), small) == ["often", "b often"]


def test_a_copy_is_worth_its_load_where_requests_would_find_all_that_have_it_busy():
    def copies(work: float, replicas: int, having: int, load_s: float = 10.0) -> int:
        """Of a model that is worth a load of 20 s to all its requests; replicas work so much."""
        others = [a_model(f"own{number}", work) for number in range(replicas)]
        model = a_model("m", requests_per_s=20 / COPY_S, load_s=load_s)
        seen = [
            a_replica(number, f"own{number}", *["m"] * (number < having))
            for number in range(replicas)
        ]
        return sum("m" in words for words in placed([model, *others], *seen))

    assert [copies(work, 2, 1) for work in (0.4, 0.6)] == [1, 2]
    assert copies(0.6, 2, 1, load_s=15.0) == 1
    assert [copies(work, 3, 2) for work in (0.6, 0.8)] == [2, 3]


def test_first_is_loaded_what_has_most_to_do_for_each_replica_then_what_is_asked_most():
    busy, shared = a_model("busy", 0.5), a_model("shared", 0.8)
    often, never = a_model("often", requests_per_s=0.1), a_model("never")
    lacking = [never, often, shared, busy]
    order = []
    having = {"shared": 1} | dict.fromkeys(["busy", "often", "never"], 0)
    while first := next_load(lacking, (), having):
        order.append(first.model)
        lacking.remove(first)
    assert order == ["busy", "shared", "often", "never"]


def test_what_requests_wait_for_is_loaded_before_copies_of_what_has_more_to_do():
    new, copied = a_model("new", 0.1), a_model("copied", 0.9)
    assert next_load([copied, new], (), {"copied": 1, "new": 0}) == new


def test_what_requests_wait_for_is_loaded_beside_what_they_do_not_wait_for():
    asked, other, never = a_model("asked", 0.1), a_model("other", 0.2), a_model("never")
    having = dict.fromkeys(["asked", "other", "never"], 0) | {"copied": 1}
    copied = a_model("copied", 0.9)
    for loading in (never, copied):
        assert next_load([asked], [loading], having) == asked
    # No request waits for those, and no more than two are loaded at a time.
    for lacking in ([never], [copied]):
        assert next_load(lacking, [a_model("filling")], having | {"filling": 0}) is None
    assert next_load([asked], [other], having) is None
    assert next_load([asked], [never, copied], having) is None


def test_a_model_that_is_asked_goes_where_it_is_ready_soonest():
    models = [a_model("busy", 0.3), a_model("first", 0.1, load_s=9.0), a_model("new", 0.1)]
    loads = a_replica(1, "a", "first", coming=("first",), memory_mib=120)
    assert placed(models, loads, a_replica(2, "busy")) == ["a first", "busy new"]
    # What nobody waits for does not count: the other one is loaded beside it.
    fills = a_replica(1, "a", "never", coming=("never",), memory_mib=120)
    assert placed(models[:1] + models[2:], fills, a_replica(2, "busy"))[0] == "a never new"


def test_replicas_with_equal_work_are_alike_whatever_their_models_are_called():
    for number in range(40):
        first, second = ([f"{letter}{number}-{nth}" for nth in range(3)] for letter in "ab")
        models = [
            a_model(name, work, memory_mib=10)
            for names in (first, second)
            for name, work in zip(names, (0.1, 0.2, 0.3), strict=True)
        ]
        found = placed([*models, a_model("m", 0.1)], a_replica(1, *first), a_replica(2, *second))
        assert "m" in found[0].split()


def test_two_that_are_asked_at_once_are_loaded_by_two_replicas():
    models = [a_model("x", 0.1), a_model("y", 0.1), a_model("b", 0.2)]
    assert placed(models, a_replica(1, "a"), a_replica(2, "b")) == ["a x", "b y"]


def test_what_is_loaded_makes_room_after_what_is_there():
    """A load can't be ended."""
    models = [a_model("new", 0.5), a_model("there", requests_per_s=0.01)]
    full = a_replica(1, "a", "loads", "there", coming=("loads",), memory_mib=120)
    assert placed(models, full) == ["a loads new"]


def test_a_replica_with_enough_to_do_gets_no_copy():
    models = [a_model("often", 0.6, requests_per_s=0.5), a_model("b", 0.9)]
    assert placed(models, a_replica(1, "often"), a_replica(2, "b")) == ["often", "b"]


def test_models_that_no_service_has_any_more_are_given_up():
    found = place([a_model("a")], [a_replica(1, "a", "gone")])
    assert found.models == {(1, 0): frozenset({"a"})}


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_pool_without_replicas_has_room_for_none(replicas: int):
    found = place([a_model("a", 1.0)], [a_replica(1, "a")] * replicas)
    assert found.unplaced == (frozenset() if replicas else {"a"})
