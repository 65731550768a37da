"""Which services have used a pool, on a real PostgreSQL: statements by service add up."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import psycopg
import pytest
from builders.tariffs import all_charges

from slicewise.cluster.language.periods import Period, period_start_s
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.usage_messages import PoolUse, UsageRecord
from slicewise.slurm_plugin.ledger.shares import WantedShares
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.tariffs import WantedCharges
from slicewise.slurm_plugin.quota_cycle.share_hours import share_hours, share_pools
from slicewise.slurm_plugin.rules.accounting.statement import (
    Day,
    by_day,
    by_service,
    by_user,
    totals,
)
from slicewise.slurm_plugin.rules.accounting.tariff import price_spans
from slicewise.slurm_plugin.rules.accounting.types import (
    Charge,
    Run,
    RunKey,
    ShareLine,
    StatementRow,
    Transfer,
    TransferKind,
)

pytestmark = pytest.mark.integration

SEED = 20261130
HOUR_S = 3600
ZONE = "Europe/Berlin"
ARRAY, OTHER_ARRAY = 7, 8
RESERVED = 10**12


@dataclass
class Books:
    """The ledger, beside two services of one pool: vision/bert in array 7, vision/gpt in 8.

    Attributes:
        begin_s: the begin of an hour of yesterday: what is older than a week is told too late.
    """

    ledger: Ledger
    url: str
    begin_s: int

    def run(self, job_id: int = 1, array: int = ARRAY, after_s: int = 0, cost: int = 1000) -> Run:
        key = RunKey("testing", job_id, self.begin_s + after_s)
        task = f"{array}_{job_id}"
        run = Run(key, "vision", "svc", task, {"1g.10gb": 1}, Millislices(cost), "science")
        start = Transfer(TransferKind.RESERVE, RESERVED, run.key.start_s + 10**9)
        self.ledger.charges.post([Charge(run, 0, (start,))])
        return run

    def end(self, run: Run, after_s: int, kind: TransferKind = TransferKind.POST) -> None:
        end_s = self.begin_s + after_s
        used = run.cost_millislices * (end_s - run.key.start_s)
        left = RESERVED if kind is TransferKind.WAIVE else RESERVED - used
        transfers = Transfer(kind, used, end_s), Transfer(TransferKind.VOID, left, end_s)
        self.ledger.charges.post([Charge(run, 1, transfers)])

    def tell(
        self, run: Run, used_s: float, service: str = "gpt", hour: int = 0, by: str = "launcher"
    ) -> None:
        self.ledger.pools.note(by, [self.use(run, used_s, service, hour)])

    def use(self, run: Run, used_s: float, service: str = "gpt", hour: int = 0) -> PoolUse:
        array, _, index = run.task.partition("_")
        return PoolUse(
            array_job_id=int(array),
            index=int(index),
            run_start_s=run.key.start_s,
            service=f"vision/{service}",
            hour_s=self.begin_s + hour * HOUR_S,
            used_ms=int(1000 * used_s),
        )

    def usage(self, *about: str) -> Mapping[tuple[str, ...], int]:
        """Slice-seconds of usage; those that the division among persons leaves are the same."""
        columns = ", ".join(about)
        with psycopg.connect(self.url) as connection:
            costs, sums = (
                connection.execute(
                    f"SELECT {columns}, sum(millislice_s)::bigint FROM slicewise.{view}"  # noqa: S608 -- constants
                    f" GROUP BY {columns}"
                ).fetchall()
                for view in ("usage_costs", "usage_sums")
            )
        if "person" not in about:
            assert sorted(row for row in costs if row[-1]) == sorted(row for row in sums if row[-1])
        return {row[:-1]: row[-1] // 1000 for row in costs if row[-1]}

    def divide(self, after_s: int = 2 * HOUR_S) -> int:
        return share_pools(self.ledger, self.begin_s + after_s, zone=ZONE)

    def read(self) -> tuple[tuple[StatementRow, ...], tuple[ShareLine, ...]]:
        rows = self.ledger.audit.statement(None, 0, self.begin_s + 10**5).rows
        return rows, self.ledger.shares.lines(WantedShares(), ZONE, 1000)

    def charged(self) -> Mapping[str, int]:
        """Slice-seconds of each service of vision."""
        lines = by_service(*self.read())
        assert all(line.tenant == "vision" for line in lines)
        return {line.key: line.charged_millislice_s // 1000 for line in lines}

    def is_right(self) -> bool:
        self.ledger.charges.seal()
        found = self.ledger.audit.verify()
        assert found.faults == (), found.faults
        return found.imbalance == 0


@pytest.fixture
def books(ledger: Ledger, ledger_database: str) -> Books:
    with psycopg.connect(ledger_database, autocommit=True) as connection:
        now = connection.execute("SELECT extract(epoch FROM now())::bigint").fetchone()
        for name, array in (("bert", ARRAY), ("gpt", OTHER_ARRAY)):
            connection.execute(
                "INSERT INTO slicewise.service_generations"
                " (cluster, tenant, name, array_job_id, submitted_s, author, directives)"
                " VALUES ('testing', 'vision', %s, %s, 1, 'a', '{}')",
                (name, array),
            )
    assert now is not None
    return Books(ledger, ledger_database, now[0] // HOUR_S * HOUR_S - 24 * HOUR_S)


@pytest.mark.promise(
    "Of services that share replicas, each has what its requests used, and all of them what the"
    " replicas cost."
)
def test_a_statement_of_two_services_of_a_pool_has_what_each_used(books: Books):
    mine, its = books.run(1), books.run(2, OTHER_ARRAY)
    for run in (mine, its):
        books.end(run, HOUR_S)
    assert books.charged() == {"bert": 3600, "gpt": 3600}
    # Its requests were at bert's replica for 900 s, and bert's at gpt's for 300 s.
    books.tell(mine, 900)
    books.tell(its, 300, service="bert")
    assert [books.divide(HOUR_S + 599), books.divide(), books.divide()] == [0, 2, 0]
    assert books.charged() == {"bert": 3600 - 900 + 300, "gpt": 3600 + 900 - 300}
    rows, shares = books.read()
    bert, gpt = by_service(rows, shares)
    assert (bert.runs, bert.used_millislice_s, bert.pooled_millislice_s) == (1, 3.6e6, -600_000)
    assert (gpt.runs, gpt.used_millislice_s, gpt.pooled_millislice_s) == (1, 3.6e6, 600_000)
    assert [total.charged_millislice_s for total in totals(rows, shares)] == [7_200_000]
    assert [line.key for line in by_user(rows, shares)] == ["svc"]
    assert books.ledger.budgets.balances()["vision"].used == 7_200_000
    assert books.is_right()


def test_what_is_told_again_counts_once_and_what_another_launcher_saw_is_added(books: Books):
    run = books.run()
    books.end(run, HOUR_S)
    for used_s in (100, 250, 250, 100):
        books.tell(run, used_s)
    books.tell(run, 50, by="next")
    # A message of the launcher that was killed comes late.
    books.tell(run, 200)
    books.divide()
    assert books.charged() == {"bert": 3300, "gpt": 300}
    books.tell(run, 650)
    assert books.divide() == 1
    assert books.charged() == {"bert": 2900, "gpt": 700}


def test_of_the_last_hour_a_run_had_less(books: Books):
    run = books.run(after_s=600)
    books.tell(run, 1000)
    books.divide()
    assert books.divide() == 0
    # It had ended in mid-hour, and looks went on for a moment.
    books.end(run, 1600)
    assert books.divide() == 1
    assert books.charged() == {"bert": 0, "gpt": 1000}
    assert books.is_right()


def test_of_what_the_operator_waives_no_service_has_anything(books: Books):
    run = books.run()
    for hour in range(2):
        books.tell(run, 900, hour=hour)
    books.divide(3 * HOUR_S)
    assert books.charged()["gpt"] == 1800
    books.end(run, 2 * HOUR_S, TransferKind.WAIVE)
    assert books.divide(3 * HOUR_S) == 2
    assert books.charged() == {"bert": 0}
    assert books.is_right()


def test_usage_by_service_and_person_has_what_each_used(books: Books):
    """Beside 100 s of bert's there are 600 s of gpt's, of which another tenant asked for a half."""
    run = books.run()
    books.end(run, HOUR_S)
    busy = {("bert", "vision", "ann"): (0, 200), ("gpt", "vision", "bob"): (1000, 1300),
            ("gpt", "optics", "eve"): (1300, 1600)}  # fmt: skip
    records = [
        UsageRecord(
            number=number, payer=payer, person=person, service=f"vision/{service}",
            array_job_id=ARRAY, index=1, run_start_s=books.begin_s,
            start_ms=1000 * (books.begin_s + from_s), end_ms=1000 * (books.begin_s + until_s),
            prompt_tokens=0, output_tokens=until_s - from_s,
        )
        for number, ((service, payer, person), (from_s, until_s)) in enumerate(busy.items())
    ]  # fmt: skip
    books.ledger.usage.post("gateway", records, ZONE)
    books.tell(run, 600)
    assert books.divide() == 1
    assert share_hours(books.ledger, {}, "owner", (), books.begin_s + 2 * HOUR_S, zone=ZONE).booked
    # Of 800 busy seconds optics has three of eight tokens: 300 s, and so half of gpt's moments.
    assert books.divide() == 1
    rows, shares = books.read()
    charged = {
        (line.tenant, line.key): line.charged_millislice_s // 1000
        for line in by_service(rows, shares)
    }
    assert charged == {
        ("optics", "vision/gpt"): 300,
        ("vision", "bert"): 3000,
        ("vision", "gpt"): 300,
    }
    assert books.usage("service", "payer") == {
        ("vision/gpt", "optics"): 300,
        ("vision/bert", "vision"): 3000,
        ("vision/gpt", "vision"): 300,
    }
    assert books.usage("service", "person") == {
        ("vision/gpt", "eve"): 300,
        ("vision/gpt", "bob"): 300,
        ("vision/bert", "ann"): 200,
        ("vision/bert", "-"): 2800,
    }
    assert books.is_right()
    # Another launcher has seen more than the replica was busy for: that was not idle.
    books.tell(run, 1400, by="next")
    books.divide()
    assert books.usage("service", "person") == {
        ("vision/gpt", "eve"): 300,
        ("vision/gpt", "bob"): 1269,
        ("vision/bert", "-"): 2030,
    }
    assert books.is_right()


def test_what_others_bear_of_an_hour_is_not_divided_among_the_tenant_s_services(books: Books):
    """Half of the hour is another tenant's: of the rest a quarter is the other service's."""
    run = books.run()
    books.end(run, HOUR_S)
    books.tell(run, 900)
    books.divide()
    hour = {
        "cluster": "testing", "job_id": 1, "start_s": books.begin_s, "hour_s": books.begin_s,
        "after": 0, "from_s": books.begin_s, "until_s": books.begin_s + HOUR_S,
        "amount": 3_600_000, "requests": 1, "busy_ms": 1, "weights": {}, "idle": {},
        "shares": [
            {"tenant": name, "payer": name, "part": "idle", "amount": 1_800_000}
            for name in ("vision", "optics")
        ],
    }  # fmt: skip
    with psycopg.connect(books.url, autocommit=True) as connection:
        connection.execute(
            "SELECT slicewise.share(%s, %s)", (psycopg.types.json.Jsonb([hour]), ZONE)
        )
    assert books.divide() == 1
    rows, shares = books.read()
    charged = {
        (line.tenant, line.key): line.charged_millislice_s // 1000
        for line in by_service(rows, shares)
    }
    assert charged == {
        ("optics", "vision/bert"): 1800,
        ("vision", "bert"): 1350,
        ("vision", "gpt"): 450,
    }
    assert books.is_right()


def test_only_services_of_the_run_s_tenant_have_a_part_and_of_known_runs(books: Books):
    run = books.run()
    books.end(run, HOUR_S)
    stranger = PoolUse(
        array_job_id=ARRAY, index=1, run_start_s=books.begin_s, service="optics/x",
        hour_s=books.begin_s, used_ms=1_000_000,
    )  # fmt: skip
    books.ledger.pools.note("launcher", [stranger, stranger.model_copy(update={"index": 5})])
    assert books.divide() == 0
    assert books.charged() == {"bert": 3600}


def test_an_hour_is_forgotten_once_nothing_can_change_it_and_its_sum_stays(books: Books):
    run, running = books.run(1), books.run(2)
    books.end(run, HOUR_S)
    for each in (run, running):
        books.tell(each, 900)
    books.divide()
    before = books.charged()
    back_s = 9 * 86_400
    with psycopg.connect(books.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE slicewise.runs SET start_s = start_s - %s", (back_s,))
        connection.execute(
            "UPDATE slicewise.pool_hours SET hour_s = hour_s - %s, run_start_s = run_start_s - %s",
            (back_s, back_s),
        )
        assert books.ledger.pools.forget() == 0
        connection.execute(
            "UPDATE slicewise.transfers SET recorded_at = recorded_at - interval '9 days'"
        )
    assert [books.ledger.pools.forget() for _ in range(2)] == [1, 0]
    with psycopg.connect(books.url) as connection:
        assert connection.execute("SELECT index FROM slicewise.pool_hours").fetchall() == [(2,)]
        (kept,) = connection.execute("SELECT sum(abs(millislice_s)) FROM slicewise.pool_days")
    assert before["gpt"] == 1800
    assert kept == (2 * 1_800_000,)
    # And it can't come back: it would count once more.
    books.begin_s -= back_s
    books.tell(run, 900)
    assert books.ledger.pools.due(books.begin_s + 2 * HOUR_S, 10) == ()


def test_verify_sees_a_day_s_sum_that_was_changed(books: Books):
    run = books.run()
    books.end(run, HOUR_S)
    books.tell(run, 900)
    books.divide()
    assert books.is_right()
    with psycopg.connect(books.url) as connection:
        connection.execute(
            "UPDATE slicewise.pool_days SET millislice_s = millislice_s + 5"
            " WHERE service = 'vision/gpt'"
        )
    (fault,) = books.ledger.audit.verify().faults
    assert fault.startswith("pools of vision")


def divide_by_daemons_that_are_killed(books: Books, random: Random) -> None:
    """Each divides a part and dies; the next one had looked before."""
    while hours := books.ledger.pools.due(books.begin_s + 20 * HOUR_S, 20):
        books.ledger.pools.divide(hours[: random.randrange(20)], ZONE)
        books.ledger.pools.divide(hours, ZONE)


def test_every_statement_by_service_adds_up(books: Books):
    random = Random(SEED)  # noqa: S311 -- no secret
    names = ("bert", "gpt", "clip")
    runs = [
        books.run(job_id, random.choice((ARRAY, OTHER_ARRAY)), random.randrange(30_000), cost)
        for job_id in range(1, 25)
        for cost in [random.choice((1000, 1999, 7000))]
    ]
    ends_s = {run.key.job_id: random.randrange(30_000, 50_000) for run in runs}

    def tell_some() -> None:
        for _ in range(150):
            run = random.choice(runs)
            first = (run.key.start_s - books.begin_s) // HOUR_S
            hour = random.randrange(first, ends_s[run.key.job_id] // HOUR_S + 1)
            by, used_s = random.choice(("a", "b")), random.randrange(2_000_000) / 1000
            books.tell(run, used_s, random.choice(names), hour, by)

    tell_some()
    divide_by_daemons_that_are_killed(books, random)
    for run in runs[:18]:
        kind = TransferKind.WAIVE if run.key.job_id % 6 == 0 else TransferKind.POST
        books.end(run, ends_s[run.key.job_id], kind)
    tell_some()
    divide_by_daemons_that_are_killed(books, random)
    assert books.divide(20 * HOUR_S) == 0
    assert books.is_right()
    its_statements_add_up(books)
    _no_part_is_more_than_its_hour(books)


def its_statements_add_up(books: Books) -> None:
    rows, shares = books.read()
    used = sum(row.used_millislice_s for row in rows)
    (total,) = totals(rows, shares)
    assert total.charged_millislice_s == total.used_millislice_s == used
    assert books.ledger.budgets.balances()["vision"].used <= used
    services = by_service(rows, shares)
    assert sum(line.charged_millislice_s for line in services) == used
    assert sum(line.pooled_millislice_s for line in services) == 0
    assert {line.key for line in services} == {"bert", "gpt", "clip"}
    days = [Day(books.begin_s // 86_400 * 86_400 + (n - 1) * 86_400, f"{n}") for n in range(5)]
    for lines in (by_user(rows, shares), by_day(rows, days, shares=shares)):
        assert sum(line.charged_millislice_s for line in lines) == used
    book = books.ledger.tariffs.book(ZONE)
    spans = price_spans(
        (), period_start_s(Period.DAY, days[0].start_s, ZONE), days[-1].start_s, ZONE
    )
    now_s = books.begin_s + 10**5
    billed = tuple(all_charges(books.ledger, WantedCharges(), spans, book, now_s))
    assert sum(line.amount for line in billed) == used
    of_services = Counter[str]()
    for line in billed:
        of_services[line.of.service] += line.amount
    assert of_services == {line.key: line.charged_millislice_s for line in services}


def _no_part_is_more_than_its_hour(books: Books) -> None:
    with psycopg.connect(books.url) as connection:
        found: Any = connection.execute(
            "SELECT sum(millislice_s), max(hour_millislice_s) FROM slicewise.pool_hours"
            " GROUP BY array_job_id, index, run_start_s, hour_s"
        ).fetchall()
    assert found
    assert all(parts <= whole for parts, whole in found)
