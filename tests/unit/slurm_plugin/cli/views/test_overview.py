"""Tests the screen of ``slicewise overview``: what fits, and that no name is obeyed."""

from typing import Any

import pytest
from builders.nodes import a_node
from builders.overview_world import ALICE, ROOT, facts, replica, service
from builders.why_world import LARGE, NOW_S, SMALL, job, running
from rich.console import Console
from rich.text import Text

from slicewise.cluster.language.findings import Severity
from slicewise.cluster.rpc.overview_messages import (
    AttentionItem,
    GpuNow,
    InstanceNow,
    MonthNow,
    OverviewAnswer,
    PowerNow,
    SlicesByState,
    TenantNow,
    TenantThisMonth,
)
from slicewise.cluster.runtime.console import PipeConsole
from slicewise.slurm_plugin.cli.views import overview as present
from slicewise.slurm_plugin.rules.overview.overview import overview

MONTH_HEADS = ["2026-11", "of", "EUR", "kWh", "measured"]
HOSTILE = "a\x1b[31m\x07[red]b[/red]\nc\x9b2J"


def shown(answer: OverviewAnswer, width: int = 80, height: int = 24, **options: Any) -> str:
    console = Console(
        width=width, height=height, force_terminal=True, **{"color_system": None, **options}
    )
    with console.capture() as captured:
        console.print(present.Screen(answer, NOW_S))
    return captured.get()


def busy() -> OverviewAnswer:
    jobs = [running(n) for n in range(1, 6)] + [job(n, "Resources") for n in range(20, 60)]
    nodes = (a_node("node1", held=5), *(a_node(f"x{n}", "DOWN") for n in range(20)))
    return overview(
        facts(
            *jobs,
            nodes=nodes,
            services=tuple(service(f"vision/s{n}", 800 + n) for n in range(30)),
            launcher_silent_s=99.0,
            unadmitted=3,
        ),
        ROOT,
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (200, 60)])
def test_it_is_one_screen_however_much_there_is(width: int, height: int):
    lines = shown(busy(), width, height).splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for part in ("error", "vision", "vision/s", "node1", "Resources", "more: "):
        assert part in text


@pytest.mark.parametrize(
    ("mode", "width", "end"),
    [
        ("enforce", 80, "ago   3.21 kW of 16 boards on 2 of 3 nodes"),
        ("observe", 80, "ago   3.21 kW of 16 …"),
        ("observe", 76, "ago"),
    ],
)
def test_watts_stand_in_the_title_as_far_as_there_is_room(mode: str, width: int, end: str):
    power = PowerNow(power_mw=3_214_000, boards=16, metered_nodes=2, gpu_nodes=3)
    answer = busy().model_copy(update={"power": power, "mode": mode})
    lines = shown(answer, width).splitlines()
    assert len(lines) < 24
    assert lines[0].endswith(end)
    assert "kW" not in shown(busy())


def with_month(currency: str = "EUR") -> OverviewAnswer:
    """Of thirty tenants, and of nobody."""
    tenants = tuple(
        TenantThisMonth(
            tenant=f"t{n}",
            millionths=n * 1_250_000 if currency else None,
            energy_mj=n * 3_600_000_000,
            measured_mj=n * 900_000_000,
        )
        for n in range(1, 31)
    )
    nobody = TenantThisMonth(tenant="", energy_mj=3_600_000_000, measured_mj=3_600_000_000)
    month = MonthNow(
        month="2026-11",
        zone="Europe/Berlin",
        currency=currency,
        seen_s=int(NOW_S) - 240,
        tenants=(nobody, *tenants),
    )
    return busy().model_copy(update={"month": month})


def test_money_and_joules_of_the_month_are_there_by_tenant_and_in_all():
    whole = "2026-11: 581.25 EUR, 466.000 kWh, as of 4 min ago by days of Europe/Berlin"
    lines = shown(with_month(), 120, 60).splitlines()
    assert len(lines) < 60
    (at,) = (nth for nth, line in enumerate(lines) if line.split() == MONTH_HEADS)
    assert lines[at + 1].split() == ["t30", "37.50", "30.000", "25%"]
    assert lines[-1].strip() == whole
    assert "more: slicewise overview --json" in lines[-2]
    # On a low terminal only what all of it comes to.
    low = shown(with_month(), 80, 24).splitlines()
    assert len(low) < 24
    assert low[3] == whole
    assert "t30" not in "\n".join(low)


def test_a_pipe_gets_each_tenant_s_month_and_nobody_s(capsys: pytest.CaptureFixture[str]):
    PipeConsole().print(present.Screen(with_month(), NOW_S))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    at = lines.index(MONTH_HEADS)
    assert lines[at + 30] == ["t1", "1.25", "1.000", "25%"]
    assert lines[at + 31] == ["nobody", "–", "1.000", "100%"]
    PipeConsole().print(present.Screen(with_month(currency=""), NOW_S))
    without = capsys.readouterr().out
    assert ["t1", "1.000", "25%"] in [line.split() for line in without.splitlines()]
    assert "2026-11: 466.000 kWh, as of" in without


def test_a_pipe_gets_every_row_and_no_styles(capsys: pytest.CaptureFixture[str]):
    PipeConsole().print(present.Screen(busy(), NOW_S))
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "more: slicewise top" not in text
    for name in ("x19", "vision/s29", "59"):
        assert name in text


def test_who_has_no_service_is_told_of_the_others_alone(capsys: pytest.CaptureFixture[str]):
    answer = busy().model_copy(update={"services": (), "other_services": 1})
    PipeConsole().print(present.Screen(answer, NOW_S))
    lines = capsys.readouterr().out.splitlines()
    assert " 1 service of other tenants" in lines
    assert "None." not in lines


def test_colours_are_styles_alone():
    with_colours = shown(busy(), color_system="standard")
    assert "\x1b[" in with_colours
    assert Text.from_ansi(with_colours).plain.split() == shown(busy()).split()


def hostile() -> OverviewAnswer:
    answer = overview(
        facts(replica(900), job(20, HOSTILE, user=HOSTILE), services=(service(),)), ROOT
    )
    gpu = answer.gpus[0]
    seat = gpu.instances[0].model_copy(update={"service": f"x/{HOSTILE}", "job": HOSTILE})
    item = AttentionItem(
        severity=Severity.ERROR, code="SW-X", about=HOSTILE, what=HOSTILE, command=HOSTILE
    )
    return answer.model_copy(
        update={
            "cluster": HOSTILE,
            "tenants": tuple(one.model_copy(update={"name": HOSTILE}) for one in answer.tenants),
            "services": tuple(
                one.model_copy(update={"name": HOSTILE, "note": HOSTILE}) for one in answer.services
            ),
            "gpus": (
                gpu.model_copy(update={"node": HOSTILE, "instances": (seat, *gpu.instances[1:])}),
            ),
            "attention": (item,),
        }
    )


@pytest.mark.parametrize("width", [80, 200])
def test_control_characters_are_not_sent_and_markup_is_not_read(width: int):
    text = shown(hostile(), width, 60)
    assert not {one for one in text if not one.isprintable()} - {"\n"}
    assert text.count("[red]b[/red]") >= 4


def test_a_terminal_without_unicode_gets_ascii_marks():
    slices = SlicesByState(
        capacity_millislices=4000,
        used_millislices=1000,
        lent_millislices=1000,
        idle_millislices=1000,
        draining_millislices=0,
        down_millislices=1000,
    )
    console = Console(width=8, color_system=None)
    options = console.options.copy()
    options.encoding = "ascii"
    bar, legend = present.ClusterBar(slices).__rich_console__(console, options)
    assert str(bar) == "##%%..xx"
    assert str(legend) == "4 slices:  # 1 used  % 1 on loan  . 1 idle  ~ 0 draining  x 1 down"


@pytest.mark.parametrize(
    ("amounts", "width", "found"),
    [
        ([0, 0], 10, [0, 0]),
        ([1, 999], 10, [1, 9]),
        ([1000, 1000, 1000], 10, [4, 3, 3]),
        ([1, 1, 1, 97], 10, [1, 1, 1, 7]),
    ],
)
def test_what_there_is_of_a_state_is_always_seen(amounts: list[int], width: int, found: list[int]):
    assert present.shares(amounts, width) == found


@pytest.mark.parametrize(
    ("lengths", "lines", "found"),
    [
        ([3, 3], 10, [3, 3]),
        ([100, 2], 10, [8, 2]),
        ([100, 100], 10, [5, 5]),
        ([100, 0, 100, 1], 0, [1, 0, 1, 1]),
    ],
)
def test_lines_go_to_the_parts_that_need_them(lengths: list[int], lines: int, found: list[int]):
    assert present.rooms_of(lengths, lines) == found


# -- GPUs


def instance(kind: str, size: int, start: int | None = None, **held: Any) -> InstanceNow:
    return InstanceNow(gres_type=kind, size=size, start=start, is_held=bool(held), **held)


def drawn(gpu: GpuNow, width: int = 6) -> list[str]:
    return [present.gpu_bar(row, width).plain for row in present.gpu_rows((gpu,))]


def test_a_gpu_is_drawn_to_scale_with_who_sits_there():
    gpu = GpuNow(
        node="node1",
        gpu=0,
        condition="up",
        memory_slices=8,
        instances=(
            instance(LARGE, 4, 4, job="12", tenant="bio"),
            instance("nvidia_a100_1g.10gb", 1, 0),
            instance(SMALL, 1, 1, job="7", service="vision/bert", is_borrowed=True),
            instance(SMALL, 1, 2, is_borrowed=False, job=""),
        ),
    )
    (line,) = drawn(gpu)
    assert line == "(1g  )<bert>[held]  ·   [12                    ]"
    assert len(line) == 8 * 6


def test_the_instances_of_a_node_that_was_not_surveyed_fill_lines_of_a_gpu_s_length():
    gpu = GpuNow(
        node="node1",
        condition="up",
        instances=(*[instance(SMALL, 1)] * 7, *[instance(LARGE, 4)] * 3),
    )
    assert drawn(gpu, 3) == [
        "(1)" * 7,
        "(3g.40gb   )(3g.40gb   )",
        "(3g.40gb   )",
    ]


# -- Words


def test_the_sums_of_others_are_told_in_words():
    answer = overview(facts(running(1, account="nlp", uid=2, user="bob")), ALICE)
    assert answer.others is not None
    assert present.others_text(answer.others) == ("3 other tenants: nominal 10 slices, 1 in use")
    waits = answer.others.model_copy(update={"waiting_jobs": 2, "waiting_millislices": 1500})
    assert present.others_text(waits).endswith("; 2 jobs wait for 1.5 slices")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (59, "59 s"), (90, "2 min"), (5400, "1.5 h"), (1e6, "11.6 d")],
)
def test_ages(seconds: float, text: str):
    assert present.age_text(seconds) == text


def test_a_tenant_above_its_limit_and_a_spent_budget_are_red():
    plain = {"nominal_millislices": 1000, "borrowed_millislices": 0, "lent_millislices": 0}
    one = TenantNow(
        name="vision",
        depth=1,
        limit_millislices=500,
        in_use_millislices=1000,
        on_loan_millislices=0,
        waiting_jobs=0,
        waiting_millislices=0,
        left_millislice_s=0,
        **plain,
    )
    cells = {each.heading: each.cell(one) for each in present.TENANT_FIELDS}
    assert cells["tenant"] == "  vision"
    for heading in ("in use", "budget left"):
        cell = cells[heading]
        assert isinstance(cell, Text)
        assert cell.style == "red"
