"""Tests what is shown of a pool: which replica has which model."""

from dataclasses import replace
from typing import Any

import json_checker
import pytest
from builders.service_views import a_report, a_running_slot, a_service
from rich.console import Console

from slicewise.cluster.rpc.messages import ModelPlace, ModelRefusal, ViewAnswer
from slicewise.cluster.runtime import console
from slicewise.launcher.cli import show_services
from slicewise.launcher.services.overview import PooledModel, ServiceObservation, join
from slicewise.launcher.services.pool_view import pool_of

BERT, TINY, WIDE = 814, 815, 816
SHARED = {"model_repository": "/models", "profile": "1g.10gb", "pool": "small"}


def member(name: str, array: int, *slots: Any, **changes: str) -> Any:
    directives = {**SHARED, "name": name, "model": f"m-{name}", "model_mib": "1000", **changes}
    return a_service(
        name=name, array_job_id=array, directives=directives, slots=slots, memory_mib=10_000
    )


def place(array: int, state: str, in_flight: int = 0, load_s: float | None = None) -> ModelPlace:
    return ModelPlace.model_validate(
        {
            "array_job_id": array,
            "slot": 0,
            "state": state,
            "in_flight": in_flight,
            "load_s": load_s,
        }
    )


def observed() -> tuple[ServiceObservation, ...]:
    """One replica of bert's, with a model that loads there; another that it has refused."""
    refusal = ModelRefusal(array_job_id=BERT, slot=0, why="CUDA out of memory")
    view = ViewAnswer(
        observed_s=1000.0,
        complete=True,
        services=(
            member("bert", BERT, a_running_slot(0, node="gpu1")),
            member("tiny", TINY),
            member("wide", WIDE),
            member("none", WIDE + 1),
            member("alone", WIDE + 2, cpus="7"),
        ),
        tenants=(),
        service_reports=(
            a_report(name="bert", places=(place(BERT, "ready", in_flight=3),)),
            a_report(name="tiny", places=(place(BERT, "loading", load_s=2.5),)),
            a_report(name="wide", refusals=(refusal,)),
            a_report(name="none", places=(place(9999, "ready"),)),
        ),
    )
    return join(view, None, "http://g", last_line=lambda _view, _slot: "")


def shared(name: str) -> ServiceObservation:
    services = observed()
    service = next(one for one in services if one.name == name)
    return replace(service, pool=pool_of(service, services))


def pool(name: str) -> tuple[PooledModel, ...] | None:
    return shared(name).pool


def test_each_replica_is_shown_with_its_own_model_first_and_what_is_nowhere_last():
    rows = pool("tiny")
    assert rows == pool("bert")
    there = (BERT, 0, "gpu1", 9000)
    assert rows == (
        PooledModel("vision/bert", "m-bert", 1000, *there, "ready", 3),
        PooledModel("vision/tiny", "m-tiny", 1000, *there, "loading", 0, 2.5),
        PooledModel("vision/wide", "m-wide", 1000, *there, "refused", why="CUDA out of memory"),
        PooledModel("vision/none", "m-none", 1000),
    )


def test_a_service_that_shares_with_none_has_no_pool():
    assert pool("alone") is None


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_who_has_which_model(width: int):
    out = Console(width=width, record=True)
    out.print(show_services.service_details(shared("bert")))
    text = out.export_text()
    assert "small, 4 services: 814_0 2 models, 2,000 of 9,000 MiB" in text
    assert "CUDA out of memory" in text
    assert "m-none" in text
    assert max(map(len, text.splitlines())) <= width


def test_programs_get_the_same_rows():
    shown = console.plain(shared("bert"))
    json_checker.check("service status", shown)
    assert [row["state"] for row in shown["pool"]] == ["ready", "loading", "refused", "absent"]
    assert "directives" not in shown
