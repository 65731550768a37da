"""A month for the tests of ``slicewise report``: October 2026 in Berlin, which has 745 hours."""

import math
from collections.abc import Callable, Mapping
from decimal import Decimal

from builders.settings import site_settings
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.history_messages import HistoryAnswer, HistoryRequest, HistorySeries
from slicewise.slurm_plugin.rules.accounting.charge_lines import Charged, ChargeLine
from slicewise.slurm_plugin.rules.accounting.statement import totals
from slicewise.slurm_plugin.rules.accounting.types import (
    Run,
    RunKey,
    ShareLine,
    Statement,
    StatementRow,
)

BEGIN_S, END_S = 1_790_805_600, 1_793_487_600
NOW_S = END_S + 5 * 86_400
HOUR_S = 3600
HOSTILE = "<script>alert(1)</script>"
SETTINGS = site_settings(name="lab", ledger={"time_zone": "Europe/Berlin"})


def row(
    tenant: str, start_s: int, seconds: int, service: str = "", slices: int = 1
) -> StatementRow:
    """A run that has ended."""
    key = RunKey("lab", start_s % 100_000, start_s)
    run = Run(key, tenant, "alice", "814", {"1g.10gb": slices}, Millislices(1000 * slices), tenant)
    used = MillisliceSeconds(1000 * slices * seconds)
    none = MillisliceSeconds(0)
    return StatementRow(run, start_s + seconds, used, none, none, service)


ROWS = (
    row("vision", BEGIN_S - 1800, 3600, "bert", 3),
    row("vision", BEGIN_S + 20 * 86_400, 300_000, "bert", 7),
    row("vision", BEGIN_S + 5 * 86_400, 90_000, HOSTILE),
    row("vision", BEGIN_S + 6 * 86_400, 900),
    row("nlp", END_S - 7000, 9000, slices=2),
    row("=cmd()", BEGIN_S + 86_400, 40),
)


_DAY, _NONE, _HALF = (BEGIN_S, "2026-10-01"), MillisliceSeconds(0), MillisliceSeconds(1_800_000)
SHARES = (
    ShareLine(*_DAY, "nlp", "nlp", "vision/bert", _HALF, _NONE, 3, 900, 100, 60),
    ShareLine(*_DAY, "vision", "vision", "vision/bert", _NONE, _HALF, 0, 0, 0, 0),
    *(
        ShareLine(*_DAY, "vision", "vision", service, _NONE, _NONE, 0, 0, 0, 0, amount)
        for service, amount in (
            ("vision/bert", MillisliceSeconds(-3_600_000)),
            ("vision/clip", MillisliceSeconds(3_600_000)),
        )
    ),
)
"""Half a slice-hour of vision's service is nlp's; one is of another service of its pool, which has
no replica of its own."""


def series(request: HistoryRequest, **of: Callable[[float], float | None]) -> HistoryAnswer:
    """Hours, of which those of the 12th are a gap."""
    times_s = tuple(range(request.since_s, min(request.until_s, END_S), HOUR_S))

    def at(begin_s: int, figure: Callable[[float], float | None]) -> float | None:
        day = (begin_s - BEGIN_S) / 86_400
        return None if 11 <= day < 12 else figure(day)

    return HistoryAnswer(
        about=request.about,
        step_s=HOUR_S,
        times_s=times_s,
        samples=tuple(
            HOUR_S // 10 if any(at(one, figure) is not None for figure in of.values()) else 0
            for one in times_s
        ),
        series=tuple(
            HistorySeries(
                name=name,
                unit="ms" if name == "p95" else "millislices",
                values=(values := tuple(at(one, figure) for one in times_s)),
                highest=values,
            )
            for name, figure in of.items()
        ),
        zone="Europe/Berlin",
    )


def wave(mean: float, by: float, days: float = 1.0) -> Callable[[float], float]:
    return lambda day: mean + by * math.sin(2 * math.pi * day / days)


def plain(value: float | None) -> Callable[[float], float | None]:
    return lambda _: value


class OctoberBooks:
    """Books with runs, and history of what is in the cluster."""

    def __init__(self, *tenants: str) -> None:
        self.names = tenants or ("vision", "nlp", HOSTILE, "cluster")
        self.asked: list[str] = []
        self.shared: tuple[ShareLine, ...] = ()

    def statement(self, tenant: str | None, since_s: int) -> tuple[Statement, int, tuple[str, ...]]:
        found = tuple(
            one
            for one in ROWS
            if tenant in {None, one.run.tenant} and (one.end_s or NOW_S) >= since_s
        )
        return Statement(found, totals(found)), NOW_S, ()

    def shares(
        self, tenant: str | None, since_s: int, until_s: int | None
    ) -> tuple[ShareLine, ...]:
        return tuple(
            line
            for line in self.shared
            if tenant in {None, line.tenant} and since_s <= BEGIN_S < (until_s or NOW_S)
        )

    def charges(
        self, tenant: str | None, from_s: int, until_s: int
    ) -> tuple[str, tuple[ChargeLine, ...]]:
        who = ("2026-10-02", "science", "vision", "bert", "alice", ("1g.10gb",))
        of = Charged(BEGIN_S, BEGIN_S + 86_400, *who, price=Decimal("0.35"))
        return "EUR", (ChargeLine(of, 3_600_000, 350_000), ChargeLine(of, 360_000, 35_000))

    def energy(self, tenant: str | None, from_s: int, until_s: int) -> Mapping[str, int] | None:
        return {"vision": 9_000_000_000}

    def tenants(self) -> tuple[str, ...]:
        return self.names

    def history(self, request: HistoryRequest) -> HistoryAnswer:
        self.asked.append(request.about)
        if request.about == "cluster":
            return series(
                request,
                used=wave(30_000, 15_000, 7),
                lent=wave(8_000, 4_000),
                idle=wave(20_000, -15_000, 7),
                draining=lambda day: 7000.0 if 20 < day < 22 else 0.0,
                down=plain(0),
                waiting=plain(2000),
                late=lambda day: 1000.0 if day > 28 else 0.0,
            )
        tenant, _, service = request.about.partition("/")
        if service == HOSTILE:
            raise InvalidInputError("SW-SERVICE-UNKNOWN", "Nothing was recorded.")
        if service:
            return series(
                request, ready=wave(3, 2), desired=wave(4, 2), backlog=plain(1), p95=wave(80, 40, 7)
            )
        return series(
            request,
            nominal=plain(14_000),
            in_use=wave(9_000, 6_000),
            borrowed=wave(1_000, 1_000, 7),
            lent=wave(2_000, 2_000, 7),
            waiting=plain(500),
            late=plain(0),
            budget_left=(lambda day: 3.6e9 * (1 - day / 40)) if tenant == "vision" else plain(None),
        )
