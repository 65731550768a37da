"""Tests url, scale, restart and delete: what is ordered, what is refused, what is waited for."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from builders.service_views import a_service, a_tenant_view, slots_in
from stand_ins.daemon_answers import answer_in_its_place
from typer.testing import CliRunner, Result

from slicewise.cluster.language.errors import OutsideError, SlicewiseError
from slicewise.cluster.rpc.messages import (
    BudgetView,
    DeleteRequest,
    ServiceView,
    TenantView,
    ViewAnswer,
    ViewRequest,
)
from slicewise.cluster.rpc.order_messages import NO_ORDER, OrderRequest, ServiceOrder
from slicewise.launcher.cli import service_orders
from slicewise.launcher.cli.service import service_app

Looks = Callable[..., list[object]]


def generation(array: int, *states: str, order: ServiceOrder = NO_ORDER) -> ServiceView:
    return a_service(
        array_job_id=array, directives={"min_replicas": "1"}, slots=slots_in(*states), order=order
    )


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What the daemon shows, look by look (the last one stays); what it was told is returned."""
    (tmp_path / "slicewise.toml").write_text(
        '[cluster]\nname = "c"\npartitions = ["gpu"]\n[gpus."A100-80GB"]\ntypes = ["1g.10gb"]\n'
    )
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    monkeypatch.setattr(service_orders, "_POLL_S", 0.0)

    def show(
        *views: Sequence[ServiceView], complete: bool = True, tenants: tuple[TenantView, ...] = ()
    ) -> list[object]:
        told: list[object] = []
        left = list(views)

        def view(_: ViewRequest) -> ViewAnswer:
            services = tuple(left.pop(0) if len(left) > 1 else left[0])
            return ViewAnswer(observed_s=1.0, complete=complete, services=services, tenants=tenants)

        answer_in_its_place(monkeypatch, ViewRequest, view)
        answer_in_its_place(monkeypatch, OrderRequest, told.append)
        answer_in_its_place(
            monkeypatch, DeleteRequest, lambda request: told.append(request.array_job_id)
        )
        return told

    return show


def run(*words: str) -> Result:
    return CliRunner().invoke(service_app, words)


def refusal(*words: str) -> str:
    failure = run(*words).exception
    assert isinstance(failure, SlicewiseError)
    return failure.refusal.code


OLD, NEW = generation(800, "running"), generation(814, "running", "held", "held", "held")
SCALED = generation(
    814, "held", "held", "held", "held", order=ServiceOrder(min_replicas=2, max_replicas=3)
)


@pytest.mark.parametrize(
    ("living", "options", "bounds"),
    [
        (NEW, ("--min", "2", "--max", "3"), (2, 3)),
        (NEW, ("--min", "0"), (0, 4)),
        (NEW, ("--max", "1"), (1, 1)),
        (SCALED, ("--min", "3"), (3, 3)),
        (SCALED, ("--max", "4"), (2, 4)),
    ],
)
def test_scale_orders_both_bounds_and_keeps_what_is_not_given(
    looks, living: ServiceView, options: tuple[str, ...], bounds: tuple[int, int]
):
    told = looks((OLD, living))
    said = run("scale", "chat", *options).stdout
    order = OrderRequest(
        array_job_id=814, what="scale", min_replicas=bounds[0], max_replicas=bounds[1]
    )
    assert told == [order]
    assert said == f"vision/chat: {bounds[0]} to {bounds[1]} replicas\n"


@pytest.mark.parametrize(("left", "is_said"), [(0, True), (1, False), (None, False)])
def test_scale_says_that_the_budget_is_used_up(looks, left: int | None, is_said: bool):
    """It said the new bounds alone, and no replica came."""
    budget = None if left is None else BudgetView(payer="lab", run_millislice_min=left)
    looks((NEW,), tenants=(a_tenant_view(budget=budget), a_tenant_view(name="other")))
    words = "The budget of lab is used up: no replica starts"
    assert (words in run("scale", "chat", "--min", "3").stderr) == is_said
    assert words not in run("scale", "chat", "--min", "0").stderr


def test_reset_gives_the_file_its_word_again(looks):
    told = looks((SCALED,))
    said = json.loads(run("scale", "chat", "--reset", "--json").stdout)
    assert told == [OrderRequest(array_job_id=814, what="scale")]
    assert (said["min_replicas"], said["max_replicas"]) == (1, 4)


@pytest.mark.parametrize(
    "options",
    [(), ("--min", "3", "--max", "2"), ("--max", "5"), ("--reset", "--min", "1"), ("--min", "5")],
)
def test_a_scale_that_can_t_be_is_refused(looks, options: tuple[str, ...]):
    told = looks((NEW,))
    assert (refusal("scale", "chat", *options), told) == ("SW-VALUE", [])


def test_restart_counts_what_it_replaces(looks):
    told = looks((NEW,))
    assert run("restart", "chat").stdout == "vision/chat: 1 replica will be replaced\n"
    assert told == [OrderRequest(array_job_id=814, what="restart")]


def test_delete_waits_until_no_generation_is_left_and_tells_what_is(looks):
    drained = generation(814, "ending", "held", "held", "held")
    told = looks((OLD, NEW), (OLD, NEW), (drained,), (drained,), ())
    result = run("delete", "chat")
    assert told == [OrderRequest(array_job_id=814, what="end")]
    assert result.stdout == "vision/chat: has ended\n"
    assert result.stderr == "waiting for 2 replicas to finish\nwaiting for 1 replica to finish\n"


def test_delete_of_what_runs_nowhere_tells_of_no_waiting(looks):
    looks((generation(814, "held"),), (generation(814, "held"),), ())
    result = run("delete", "chat")
    assert (result.stdout, result.stderr) == ("vision/chat: has ended\n", "")


def test_delete_now_cancels_every_generation(looks):
    told = looks((OLD, NEW), ())
    result = run("delete", "vision/chat", "--now", "--json")
    assert (told, result.exit_code) == ([800, 814], 0)
    assert json.loads(result.stdout) == {
        "service": "vision/chat",
        "array_job_id": 814,
        "ended": True,
    }


def test_a_delete_that_takes_longer_is_no_success_and_goes_on(looks):
    looks((NEW,))
    result = run("delete", "chat", "--timeout", "0")
    assert result.stdout == ""
    assert isinstance(result.exception, OutsideError)
    assert result.exception.refusal.code == "SW-TIMEOUT"
    assert "has not ended after 0 s; it still ends by itself" in str(result.exception)


@pytest.mark.parametrize("command", [("scale", "chat", "--min", "1"), ("restart", "chat")])
def test_nothing_is_ordered_on_half_a_look(looks, command: tuple[str, ...]):
    told = looks((NEW,), complete=False)
    assert (refusal(*command), told) == ("SW-DAEMON-BLIND", [])


def test_half_a_look_is_no_end(looks, monkeypatch):
    looks((NEW,))
    shown = [
        ViewAnswer(observed_s=1.0, complete=complete, services=services, tenants=())
        for complete, services in ((True, (NEW,)), (False, ()), (True, (NEW,)), (True, ()))
    ]
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: shown.pop(0))
    assert run("delete", "chat").exit_code == 0
    assert shown == []


@pytest.mark.parametrize("command", ["scale", "restart", "delete"])
def test_an_unknown_name_is_refused(looks, command: str):
    told = looks((NEW,))
    options = ("--min", "1") if command == "scale" else ()
    assert (refusal(command, "bert", *options), told) == ("SW-SERVICE-UNKNOWN", [])


def test_the_address_is_all_that_url_prints(looks):
    looks([generation(810, "running"), generation(814, "running")])
    url = json.loads(run("url", "vision/chat", "--json").stdout)
    assert (url["service"], url["url"].endswith("/vision/chat")) == ("vision/chat", True)
    assert run("url", "chat").stdout == f"{url['url']}\n"
    assert "SW-SERVICE-UNKNOWN" in refusal("url", "nobody")
