"""Tests the pictures of ``slicewise top``: exactly a screen, and inert whatever names hold."""

from dataclasses import replace
from typing import Any

import pytest
from builders.nodes import a_node
from builders.overview_world import ALICE, ROOT, facts, replica, report, service
from builders.why_world import NOW_S, job, running
from rich.console import Console

from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.rpc.overview_messages import LoanNow, OverviewAnswer, PowerNow
from slicewise.cluster.rpc.read_messages import WhyAnswer
from slicewise.slurm_plugin.cli.views.top import Frame, table_of
from slicewise.slurm_plugin.cli.views.top_state import VIEWS, TopState
from slicewise.slurm_plugin.rules.overview.overview import overview

HOSTILE = "a\x1b]0;b\x07\x1b[2J[red]c[/red]\nd\x9b1m"


def lines(answer: OverviewAnswer, state: TopState, size: tuple[int, int] = (80, 24), **more: Any):
    console = Console(width=size[0], height=size[1], color_system=None, force_terminal=True)
    options = console.options.update(width=size[0], height=size[1])
    found = console.render_lines(Frame(answer, state, NOW_S, **more), options, pad=False)
    return ["".join(segment.text for segment in line) for line in found]


def answer() -> OverviewAnswer:
    jobs = [replica(900), running(7, account="nlp", user="bob", uid=2)]
    jobs += [job(n, "Resources", priority=-n) for n in range(20, 90)]
    jobs += [job(99, "Priority", priority=-999, account="nlp", user="bob", uid=2)]
    nodes = (a_node("gpu1", held=2), a_node("gpu2", "DOWN"))
    jobs[:2] = [replace(one, nodes=("gpu1",)) for one in jobs[:2]]
    services = (service(), service("nlp/chat", 950, user="bob"))
    reports = {("vision", "bert"): report()}
    now = overview(facts(*jobs, nodes=nodes, services=services, reports=reports), ROOT)
    lent = {"amount_millislices": 2000, "lender_waits_millislices": 3000}
    replicas = {"released": 0, "starting": 1, "running": 2, "ending": 0}
    loans = (
        LoanNow(lender="vision", borrower="nlp", back_s=NOW_S + 240, **lent, **replicas),
        LoanNow(lender="", borrower="nlp", **lent, **replicas),
    )
    return now.model_copy(update={"loans": loans})


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 10), (20, 6)])
@pytest.mark.parametrize("view", VIEWS)
def test_a_picture_is_exactly_as_large_as_the_terminal(view, size):
    for state in (
        TopState(view, row=40),
        TopState(view, filter="nothing"),
        TopState(view, about="7"),
    ):
        found = lines(answer(), state, size)
        assert len(found) == size[1]
        assert max(map(len, found)) <= size[0]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_before_quotas_are_enforced_the_title_says_what_they_bound(mode):
    told = answer().model_copy(update={"mode": mode})
    assert lines(told, TopState("tenants"))[0].startswith(
        f"lab   mode {mode}: quotas bound services alone   seen 2 s ago"
    )


def test_watts_stand_in_the_title_where_a_meter_tells_and_the_look_did_not_fail():
    power = PowerNow(power_mw=3_214_000, boards=16, metered_nodes=2, gpu_nodes=3)
    told, state = answer().model_copy(update={"power": power}), TopState("tenants")
    plain = "lab   mode enforce   seen 2 s ago"
    assert lines(answer(), state)[0] == plain
    assert lines(told, state)[0] == f"{plain}   3.21 kW of 16 boards on 2 of 3 nodes"
    assert lines(told, state, (52, 10))[0] == f"{plain}   3.21 kW of 16 b…"
    assert lines(told, state, (40, 10))[0] == plain
    refused = Refusal("SW-DAEMON-DOWN", "The daemon does not answer.", "")
    assert "kW" not in lines(told, state, failure=refused)[0]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ("tenants", ("bio", "  vision", "nominal", "budget left")),
        ("services", ("vision/bert", "2 of 3", "42", "3 wait")),
        ("GPUs", ("gpu1", "[7    ][bert ](1g   )", "down")),
        ("waiting", ("1g.10gb", "Resources", "2.8 h")),
        ("loans", ("vision  nlp            2  recalled, back within 4 min", "others", "lent")),
        ("attention", ("gpu2 is down", "→ scontrol update NodeName=gpu2 State=RESUME")),
    ],
)
def test_each_view_shows_its_rows_and_the_cluster_above_them(view, words):
    found = lines(answer(), TopState(view))
    assert found[0].startswith("lab   mode enforce   seen 2 s ago")
    assert "14 slices:" in found[2]
    assert found[3].startswith("  1 attention 3 ")
    assert "5 waiting 71" in found[3]
    text = "\n".join(found)
    for word in words:
        assert word in text


def test_the_selected_row_is_on_the_screen_wherever_it_is():
    for row, name in ((0, " 20 "), (35, " 55 "), (70, " 99 ")):
        found = lines(answer(), TopState("waiting", row=row))
        assert any(line.startswith(name) for line in found)


def test_rows_are_filtered_sorted_and_turned_round():
    now = answer()
    by_slices = table_of(now, TopState("tenants", sort=6), NOW_S).rows
    assert [one.name for one in by_slices][:2] == ["lab", "vision"]
    assert {one.depth for one in by_slices} == {0}
    turned = table_of(now, TopState("tenants", sort=6, is_reversed=True), NOW_S).rows
    assert turned == by_slices[::-1]
    found = table_of(now, TopState("waiting", filter="NLP"), NOW_S)
    assert [one.job for one in found.rows] == ["99"]
    assert found.keys.at(0, 0) == "99"
    assert [one.node for one in table_of(now, TopState("GPUs", filter="bert"), NOW_S).rows] == [
        "gpu1"
    ]


def test_enter_asks_about_what_is_selected():
    now = answer()
    asked = {view: table_of(now, TopState(view), NOW_S).keys.about[0] for view in VIEWS}
    assert asked["tenants"] == ("bio",)
    assert asked["services"] == ("nlp/chat",)
    assert asked["GPUs"][:3] == ("7", "814_0", "")
    assert asked["waiting"] == ("20",)
    assert asked["loans"] == ("nlp",)
    assert asked["attention"] == ("",)


def test_an_explanation_takes_the_place_of_the_table_and_scrolls():
    why = WhyAnswer(
        about="7", headline="Job 7 waits", sentences=tuple(f"line {n}." for n in range(40))
    )
    state = TopState("waiting", about="7")
    assert "Asking why 7" in lines(answer(), state)[4]
    found = lines(answer(), state, why=why)
    assert (found[4], found[5]) == ("Job 7 waits", "line 0.")
    assert lines(answer(), replace(state, scroll=3), why=why)[4] == "line 2."
    assert lines(answer(), replace(state, scroll=999), why=why)[-2] == "line 39."
    refused = Refusal("SW-FORBIDDEN", "There is no job 7.", "Try again.")
    assert "There is no job 7." in "\n".join(lines(answer(), state, why=refused))


def test_a_failed_look_is_told_above_what_was_seen_before():
    down = Refusal("SW-DAEMON-DOWN", "The daemon does not answer.", "")
    found = lines(answer(), TopState(), failure=down)
    assert "SW-DAEMON-DOWN: The daemon does not answer." in found[0]
    assert "vision" in "\n".join(found)


def test_of_the_selected_service_the_whole_reason_is_told_below_the_rows():
    why = "no requests now; no replica is needed; at least 2 shall run, as its file says"
    now = answer()
    said = tuple(one.model_copy(update={"why": why}) for one in now.services)
    found = lines(now.model_copy(update={"services": said}), TopState("services", row=1))
    assert found[7].strip() == ""
    assert " ".join(line.strip() for line in found[8:10]).strip() == why


def test_the_sums_of_others_stand_below_the_own_tenants():
    own = overview(facts(running(1)), ALICE)
    assert " 3 other tenants: nominal 10 slices, 0 in use" in lines(own, TopState())


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_that_a_terminal_would_obey_is_shown(view):
    now = answer()
    bad = {"name": HOSTILE, "tenant": HOSTILE, "job": HOSTILE, "user": HOSTILE, "node": HOSTILE}
    bad |= {"what": HOSTILE, "command": HOSTILE, "about": HOSTILE, "reason": HOSTILE}
    bad |= {"lender": HOSTILE, "borrower": HOSTILE}
    bad |= {"note": HOSTILE, "service": f"x/{HOSTILE}", "gres_type": HOSTILE}

    def spoilt(one: Any) -> Any:
        fields = {key: value for key, value in bad.items() if key in type(one).model_fields}
        if "instances" in type(one).model_fields:
            fields["instances"] = tuple(map(spoilt, one.instances))
        return one.model_copy(update=fields)

    parts = ("tenants", "services", "gpus", "waiting", "loans", "attention")
    hostile = now.model_copy(
        update={part: tuple(map(spoilt, getattr(now, part))) for part in parts}
        | {"cluster": HOSTILE}
    )
    why = WhyAnswer(about=HOSTILE, headline=HOSTILE, sentences=(HOSTILE,), hints=(HOSTILE,))
    down = Refusal("SW-X", HOSTILE, HOSTILE)
    for state in (TopState(view), TopState(view, about=HOSTILE), TopState(view, filter=HOSTILE)):
        for more in ({}, {"why": why}, {"why": down, "failure": down}):
            text = "".join(lines(hostile, state, (200, 60), **more))
            assert all(one.isprintable() for one in text), text
