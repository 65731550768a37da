"""Tests what is told of a pool: which replica has which model."""

from typing import Any

from builders.service_views import a_report, a_running_slot, a_service

from slicewise.cluster.rpc.messages import ModelPlace, ModelRefusal
from slicewise.cluster.rpc.read_messages import PooledModelNow
from slicewise.slurm_plugin.rules.services.pool_models import pool_models

BERT, TINY, WIDE, NONE, ALONE = range(814, 819)
REFUSED = ModelRefusal(array_job_id=BERT, slot=0, why="CUDA out of memory")


def member(name: str, array: int, *slots: Any, **changes: str) -> Any:
    directives = {"pool": "small", "name": name, "model": f"m-{name}", **changes}
    return a_service(name=name, array_job_id=array, directives=directives, slots=slots)


def place(array: int, **fields: Any) -> ModelPlace:
    return ModelPlace(array_job_id=array, slot=0, **fields)


VIEWS = (
    member("none", NONE),
    member("bert", BERT, a_running_slot(0, node="gpu1")),
    member("tiny", TINY, a_running_slot(0, node="gpu2")),
    member("wide", WIDE),
    member("alone", ALONE, cpus="7"),
)
REPORTS = (
    a_report(name="bert", places=(place(BERT, state="ready", in_flight=3),)),
    a_report(
        name="tiny",
        places=(place(TINY, state="ready"), place(BERT, state="loading", load_s=2.5)),
    ),
    a_report(name="wide", refusals=(REFUSED,)),
    # One that has gone, or is another user's.
    a_report(name="none", places=(place(9999, state="ready"), place(ALONE, state="ready"))),
)


def row(name: str, place: tuple[int, str] | None = None, **fields: Any) -> PooledModelNow:
    if place is not None:
        fields |= {"array_job_id": place[0], "slot": 0, "node": place[1]}
    return PooledModelNow(service=name, model=f"m-{name}", **fields)


def test_each_replica_is_told_with_its_own_model_first_and_what_is_nowhere_last():
    first, second = (BERT, "gpu1"), (TINY, "gpu2")
    rows = pool_models("vision/wide", VIEWS, REPORTS)
    assert rows == (
        row("bert", first, state="ready", in_flight=3),
        row("tiny", first, state="loading", load_s=2.5),
        row("wide", first, state="refused", why="CUDA out of memory"),
        row("tiny", second, state="ready"),
        row("none"),
    )
    assert rows == pool_models("vision/bert", VIEWS, REPORTS)


def test_one_that_shares_with_none_has_no_pool():
    assert pool_models("vision/alone", VIEWS, REPORTS) == ()
    assert pool_models("vision/gone", VIEWS, REPORTS) == ()
    assert pool_models("vision/bert", VIEWS[1:2], REPORTS) == ()


def test_a_replica_of_an_older_generation_is_told_and_a_load_after_a_refusal():
    newer = member("bert", 900, a_running_slot(0, node="gpu3"), model="m-newer")
    told = a_report(
        name="wide", refusals=(REFUSED,), places=(place(BERT, state="loading", load_s=1.0),)
    )
    rows = pool_models("vision/bert", (newer, *VIEWS[1:4]), (told,))
    assert rows == (
        row("wide", (BERT, "gpu1"), state="loading", load_s=1.0, why="CUDA out of memory"),
        PooledModelNow(service="bert", model="m-newer"),
        row("tiny"),
    )


def test_while_the_launcher_tells_nothing_each_model_is_nowhere():
    assert pool_models("vision/bert", VIEWS[1:3], ()) == (row("bert"), row("tiny"))
