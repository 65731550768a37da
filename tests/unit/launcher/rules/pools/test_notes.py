"""Tests what apply says of a pool: who shares with the service, who does not and why."""

from builders.service_specs import a_spec
from builders.service_views import a_service, slots_in

from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.rpc.order_messages import ServiceOrder
from slicewise.launcher.rules.pools.notes import pool_notes

USER = "ann"


def spec(name: str, **change: object) -> ServiceSpec:
    return a_spec(**({"name": name, "model": name, "pool": "small"} | change))


def lives(array: int, of: ServiceSpec, user: str = USER) -> ServiceView:
    view = a_service(array_job_id=array, directives=dict(of.values()), slots=slots_in("held"))
    return view.model_copy(update={"name": of.name, "user": user})


def test_without_a_pool_nothing_is_said():
    assert pool_notes(spec("bert", pool=None), USER, [lives(7, spec("ner"))]) == ()


def test_a_pool_that_no_other_service_is_in_is_said():
    (said,) = pool_notes(spec("bert"), USER, [lives(7, spec("bert")), lives(8, a_spec())])
    assert said == (
        "pool small: no other service of vision is in it yet, so replicas serve this one alone"
    )


def test_one_that_shares_with_all_says_nothing():
    others = [lives(7, spec("ner")), lives(8, spec("tag", max_replicas=2, concurrency=4))]
    assert pool_notes(spec("bert"), USER, others) == ()


def test_the_newest_generation_says_whether_it_shares():
    before, now = lives(7, spec("ner", cpus=4)), lives(9, spec("ner"))
    assert pool_notes(spec("bert"), USER, [now, before]) == ()
    ends = now.model_copy(update={"order": ServiceOrder(delete_s=5.0)})
    assert "no other service" in pool_notes(spec("bert"), USER, [ends])[0]


def test_what_is_not_alike_is_named_with_both_values():
    others = [
        lives(7, spec("ner", cpus=4)),
        lives(8, spec("tag", cpus=4)),
        lives(9, spec("sum", audience=["*"])),
    ]
    first, second = pool_notes(spec("bert"), USER, others)
    assert first == (
        "pool small: shares no replicas with vision/ner and vision/tag: cpus is 1 here, 4 there"
    )
    assert second.startswith("pool small: shares no replicas with vision/sum: audience is ")


def test_replicas_of_another_user_are_not_shared():
    (said,) = pool_notes(spec("bert"), USER, [lives(7, spec("ner"), user="bob")])
    assert said.endswith("with vision/ner: replicas run as ann here, as bob there")


def test_of_two_models_of_one_name_it_is_said_which_service_shares():
    others = [lives(7, spec("ner", model="bert")), lives(8, spec("tag"))]
    (said,) = pool_notes(spec("zert", model="bert"), USER, others)
    assert "with vision/ner: both have a model named bert" in said
    assert "only vision/ner, the first by name, shares" in said
    (said,) = pool_notes(spec("bert"), USER, others)
    assert "only vision/bert, the first by name, shares" in said
