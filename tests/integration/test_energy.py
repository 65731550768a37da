"""Joules on a real PostgreSQL: jobs and nobody have what each board took, told once or often."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from random import Random

import psycopg
import pytest

from slicewise.cluster.language.gpus.energy import EnergyMeasure, Split
from slicewise.cluster.language.periods import date_text
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.energy_messages import EnergyPostRequest, ToldHour, ToldPart
from slicewise.slurm_plugin.ledger.energy import WantedEnergy
from slicewise.slurm_plugin.ledger.server_facts import ledger_facts
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.tariffs import WantedCharges
from slicewise.slurm_plugin.rules.accounting.charge_lines import EnergyDay
from slicewise.slurm_plugin.rules.accounting.energy import EnergyRow
from slicewise.slurm_plugin.rules.accounting.types import (
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)

pytestmark = pytest.mark.integration

SEED = 20261130
HOUR_S = 3600
ZONE = "Europe/Berlin"
FIELDS = ("day", "node", "tenant", "person", "service")
RESERVED = 10**12
MODEL = "H200-141GB"
KJ = 10**6
"""Of millijoules."""


@dataclass
class Books:
    """The ledger, and an hour of yesterday: what is older than a week is told too late."""

    ledger: Ledger
    url: str
    begin_s: int

    def run(self, job_id: int, tenant: str, after_s: int = 0, task: str = "") -> Run:
        key = RunKey("testing", job_id, self.begin_s + after_s)
        gres, cost = {"1g.18gb": 2}, Millislices(2000)
        run = Run(key, tenant, f"{tenant}-user", task or str(job_id), gres, cost, tenant)
        start = Transfer(TransferKind.RESERVE, RESERVED, key.start_s + 10**9)
        self.ledger.charges.post([Charge(run, 0, (start,))])
        return run

    def end(self, run: Run, after_s: int) -> None:
        end_s = self.begin_s + after_s
        used = run.cost_millislices * (end_s - run.key.start_s)
        transfers = (
            Transfer(TransferKind.POST, used, end_s),
            Transfer(TransferKind.VOID, RESERVED - used, end_s),
        )
        self.ledger.charges.post([Charge(run, 1, transfers)])

    def hour(self, parts: dict[int, int], hour: int = 0, gpu: str = "GPU-1") -> ToldHour:
        """Millijoules by job; 0 is nobody's."""
        return ToldHour(
            hour_s=self.begin_s + hour * HOUR_S,
            gpu_uuid=gpu,
            measure=EnergyMeasure.COUNTER,
            model=MODEL,
            energy_mj=sum(parts.values()),
            covered_ms=HOUR_S * 1000,
            checked_mj=sum(parts.values()),
            power_mj=sum(parts.values()),
            parts=tuple(
                ToldPart(
                    job_id=job_id,
                    split=Split.ACTIVITY if job_id else Split.IDLE,
                    energy_mj=energy_mj,
                )
                for job_id, energy_mj in parts.items()
            ),
        )

    def tell(self, *hours: ToldHour, by: str = "m1", node: str = "gpu01") -> int:
        told = EnergyPostRequest(node=node, seen_by=by, boards=(), hours=hours)
        return self.ledger.energy.note(told)

    def wanted(self, *tenants: str, fields: Collection[str] = FIELDS) -> WantedEnergy:
        span = self.begin_s - 86_400, self.begin_s + 2 * 86_400
        return WantedEnergy(*span, ZONE, tenants or None, 1000, fields)

    def rows(self, *tenants: str) -> tuple[EnergyRow, ...]:
        return self.ledger.energy.rows(self.wanted(*tenants))

    def by_tenant(self, *tenants: str) -> dict[str, int]:
        sums: dict[str, int] = {}
        for row in self.rows(*tenants):
            name = "unknown" if row.is_unknown else row.tenant
            sums[name] = sums.get(name, 0) + row.energy_mj
        return sums

    def charged(self) -> tuple[EnergyDay, ...]:
        days = [date_text(self.begin_s + day * 86_400, ZONE) for day in (-1, 0, 1, 2)]
        return self.ledger.tariffs.energy(WantedCharges(), days, ZONE, None, 1000)

    def is_right(self) -> bool:
        found = self.ledger.audit.verify()
        return not [fault for fault in found.faults if "energy" in fault]


@pytest.fixture
def books(ledger: Ledger, ledger_database: str) -> Books:
    with psycopg.connect(ledger_database, autocommit=True) as connection:
        now = connection.execute("SELECT extract(epoch FROM now())::bigint").fetchone()
        connection.execute(
            "INSERT INTO slicewise.service_generations"
            " (cluster, tenant, name, array_job_id, submitted_s, author, directives)"
            " VALUES ('testing', 'vision', 'bert', 7, 1, 'a', '{}')"
        )
    assert now is not None
    return Books(ledger, ledger_database, now[0] // HOUR_S * HOUR_S - 30 * HOUR_S)


def test_parts_are_of_tenants_services_and_nobody(books: Books) -> None:
    books.run(11, "vision", task="7_0")
    books.run(12, "nlp")
    books.tell(books.hour({0: 1000, 11: 300, 12: 200, 99: 7}))
    assert books.by_tenant() == {"": 1000, "vision": 300, "nlp": 200, "unknown": 7}
    assert books.by_tenant("vision") == {"vision": 300}
    (row,) = (row for row in books.rows() if row.tenant == "vision")
    assert (row.service, row.person, row.node, row.measure, row.split) == (
        *("vision/bert", "vision-user", "gpu01", "counter", "activity"),
    )
    assert books.is_right()


def test_each_run_has_rows_of_its_own_where_it_is_asked_for(books: Books) -> None:
    """Of one number used twice, of an array, unmeasured, and of a job that the ledger lacks."""
    books.end(books.run(11, "vision", task="7_0"), HOUR_S // 2)
    books.run(11, "nlp", after_s=25 * HOUR_S)
    books.end(books.run(12, "nlp"), HOUR_S)
    books.tell(books.hour({0: 9, 11: 300, 99: 7}), books.hour({11: 40}, hour=25))
    wanted = books.wanted(fields=("run", "started_s", "tenant"))
    begin_s = books.begin_s
    assert {
        (r.run, r.started_s, r.tenant, r.energy_mj) for r in books.ledger.energy.rows(wanted)
    } == {
        ("", 0, "", 9),
        ("99", 0, "", 7),
        ("7_0", begin_s, "vision", 300),
        ("11", begin_s + 25 * HOUR_S, "nlp", 40),
    }
    (unseen,) = books.ledger.energy.unmeasured(wanted, begin_s + 26 * HOUR_S)
    assert (unseen.run, unseen.started_s, unseen.seconds) == ("12", begin_s, HOUR_S)


def test_what_is_told_again_or_late_counts_once(books: Books) -> None:
    books.run(11, "vision")
    early, late = books.hour({0: 1000, 11: 300}), books.hour({0: 1100, 11: 500, 12: 50})
    for hour in (early, late, late, early):
        books.tell(hour)
    assert sum(row.energy_mj for row in books.rows()) == late.energy_mj
    assert books.by_tenant() == {"": 1100, "vision": 500, "unknown": 50}
    assert books.is_right()


def test_meters_nodes_boards_and_hours_add_up(books: Books) -> None:
    """Whatever is told in which order, in the end each counts once."""
    random = Random(SEED)  # noqa: S311 -- no secret
    last: dict[tuple[str, str, int], ToldHour] = {}
    for _ in range(200):
        meter, gpu = random.choice("abc"), random.choice(("GPU-1", "GPU-2"))
        hour = random.choice((0, 1))
        before = last.get((meter, gpu, hour))
        sums = {part.job_id: part.energy_mj for part in before.parts} if before else {0: 1}
        for job_id in random.sample(range(4), 2):
            sums[job_id] = sums.get(job_id, 0) + random.randrange(1, 10**6)
        last[meter, gpu, hour] = told = books.hour(sums, hour, gpu)
        books.tell(told, by=meter)
        if before is not None:
            books.tell(before, by=meter)
    assert sum(row.energy_mj for row in books.rows()) == sum(h.energy_mj for h in last.values())
    assert books.is_right()


def test_a_number_that_is_used_again_another_day_is_the_later_run_s(books: Books) -> None:
    books.end(books.run(11, "vision"), HOUR_S // 2)
    books.run(11, "nlp", after_s=25 * HOUR_S)
    books.tell(books.hour({11: 300}), books.hour({11: 40}, hour=25))
    assert books.by_tenant() == {"vision": 300, "nlp": 40}


def test_joules_of_a_number_that_ran_long_ago_are_not_that_old_run_s(books: Books) -> None:
    """As of a job that the ledger does not have; one that runs still has its number itself."""
    books.end(books.run(11, "vision", after_s=-60 * HOUR_S), -50 * HOUR_S)
    books.run(12, "nlp", after_s=-60 * HOUR_S)
    books.tell(books.hour({11: 300, 12: 40}))
    assert books.by_tenant() == {"unknown": 300, "nlp": 40}
    assert {day.tenant for day in books.charged()} == {"nlp"}


def test_what_a_counter_says_that_its_power_denies_is_the_run_s_and_not_charged(
    books: Books,
) -> None:
    """From the hour on in which that is seen, until both say the same again of two days."""
    books.run(11, "vision")
    books.tell(books.hour({0: 20 * KJ, 11: 100 * KJ}))
    (before,) = books.charged()
    off = books.hour({0: 20 * KJ, 11: 100 * KJ, 99: 5}, hour=1)
    off = off.model_copy(update={"power_mj": 70 * KJ})
    for _ in range(2):
        books.tell(off)
    assert books.by_tenant() == {"": 40 * KJ, "vision": 200 * KJ, "unknown": 5}
    assert {row.split for row in books.rows()} == {"idle", "activity", "unchecked"}
    assert books.charged() == (before,)
    # Another board of the node is as good as it was.
    books.tell(books.hour({11: 3}, hour=1, gpu="GPU-2"))
    assert sum(day.energy_mj for day in books.charged()) == 100 * KJ + 3
    books.tell(books.hour({11: 2000 * KJ}, hour=2))
    assert sum(day.energy_mj for day in books.charged()) == 2100 * KJ + 3
    assert books.is_right()


def test_what_two_meters_saw_is_the_run_s_and_not_charged(books: Books) -> None:
    books.run(11, "vision")
    for meter in ("m1", "m2", "m1"):
        books.tell(books.hour({0: 1, 11: 300}), by=meter)
    assert books.by_tenant() == {"": 2, "vision": 600}
    assert books.charged() == ()
    assert books.is_right()


def test_hours_that_nothing_can_change_are_summed_by_the_day(books: Books) -> None:
    books.run(11, "vision", after_s=-10 * 86_400)
    books.tell(books.hour({0: 1000, 11: 300}), books.hour({0: 10, 11: 3}, hour=1))
    before = books.by_tenant()
    assert books.ledger.energy.fold(ZONE) == 0
    with psycopg.connect(books.url, autocommit=True) as connection:
        connection.execute(
            "ALTER TABLE slicewise.energy_hours DROP CONSTRAINT fk_energy_hours_board"
        )
        for table in ("energy_hours", "energy_boards"):
            connection.execute(f"UPDATE slicewise.{table} SET hour_s = hour_s - 8 * 86400")  # noqa: S608 -- constants
    books.begin_s -= 8 * 86_400
    assert books.by_tenant() == before
    assert books.ledger.energy.fold(ZONE) == 2
    assert books.by_tenant() == before
    assert books.is_right()
    with psycopg.connect(books.url, autocommit=True) as connection:
        (left,) = connection.execute("SELECT count(*) FROM slicewise.energy_hours")
        assert left == (0,)
        connection.execute("UPDATE slicewise.energy_days SET energy_mj = energy_mj + 1")
    assert not books.is_right()


def test_what_is_older_than_a_week_comes_too_late(books: Books) -> None:
    books.tell(books.hour({0: 1000}, hour=-24 * 7))
    assert books.rows() == ()


def test_a_part_that_was_changed_is_found(books: Books) -> None:
    books.tell(books.hour({0: 1000}))
    assert books.is_right()
    with psycopg.connect(books.url, autocommit=True) as connection:
        connection.execute("UPDATE slicewise.energy_hours SET energy_mj = 999")
    assert not books.is_right()


@pytest.mark.parametrize("field", FIELDS)
def test_sums_are_by_what_is_asked_and_add_up_to_the_same(books: Books, field: str) -> None:
    for job_id, tenant in ((7, "vision"), (12, "nlp"), (13, "nlp")):
        books.run(job_id, tenant, task=f"{job_id}_0")
        books.end(books.run(job_id + 10, tenant, task=f"{job_id}_1"), 2 * HOUR_S)
    for node in ("gpu01", "gpu02"):
        hours = (books.hour({0: 9, 7: 20, 12: 30, 13: 40}, hour=hour) for hour in (0, 26))
        books.tell(*hours, node=node)
    now_s, found = books.begin_s + 3 * HOUR_S, []
    for fields in (FIELDS, {field}):
        wanted = books.wanted(fields=fields)
        rows = books.ledger.energy.rows(wanted)
        unmeasured = books.ledger.energy.unmeasured(wanted, now_s)
        sums: Counter[tuple[str, ...]] = Counter()
        for row in rows:
            sums[getattr(row, field), row.split] += row.energy_mj
        for unseen in unmeasured:
            sums[(getattr(unseen, field, ""),)] += unseen.seconds
        found.append((sums, len(rows), len(unmeasured)))
    (every, *most), (asked, *fewer) = found
    assert asked == every
    assert sum(asked.values()) == 4 * 99 + 3 * 2 * HOUR_S
    assert fewer < most


def test_hours_of_more_than_a_week_ago_or_to_come_are_counted_and_not_kept(books: Books) -> None:
    told = (books.hour({0: 9}, hour=hour) for hour in (-8 * 24, 0, 40))
    assert books.tell(*told) == 2
    assert books.by_tenant() == {"": 9}


def test_runs_that_no_meter_saw_are_told_by_the_day(books: Books) -> None:
    books.end(books.run(11, "vision", task="7_0"), 2 * HOUR_S)
    books.run(12, "nlp")
    books.tell(books.hour({12: 5}))
    rows = books.ledger.energy.unmeasured(books.wanted(), books.begin_s + 3 * HOUR_S)
    assert sum(row.seconds for row in rows) == 2 * HOUR_S
    assert {(row.tenant, row.service) for row in rows} == {("vision", "vision/bert")}
    assert all(row.gres == {"1g.18gb": 2} for row in rows)


def test_what_a_meter_saw_of_another_run_of_the_same_number_is_not_the_run_s(books: Books) -> None:
    books.end(books.run(11, "vision"), HOUR_S // 2)
    books.tell(books.hour({11: 300}))
    books.end(books.run(11, "nlp", after_s=25 * HOUR_S), 26 * HOUR_S)
    rows = books.ledger.energy.unmeasured(books.wanted(), books.begin_s + 30 * HOUR_S)
    assert {(row.tenant, row.seconds) for row in rows} == {("nlp", HOUR_S)}


def test_of_a_meter_with_an_older_file_the_larger_sum_has_its_own_parts(books: Books) -> None:
    books.tell(books.hour({0: 1000, 11: 300, 12: 200, 13: 0}))
    books.tell(books.hour({0: 2000, 11: 100}))
    assert sum(books.by_tenant().values()) == 2100
    assert books.is_right()
    rows = books.ledger.energy.unmeasured(books.wanted(), books.begin_s + 3 * HOUR_S)
    assert rows == ()


def test_boards_are_compared_with_their_power(books: Books) -> None:
    hour = books.hour({0: 1000}, hour=28)
    books.tell(hour.model_copy(update={"power_mj": 700}))
    (board,) = ledger_facts(books.url).boards
    assert (board.node, board.checked_mj, board.power_mj) == ("gpu01", 1000, 700)
    assert board.most_covered_ms == HOUR_S * 1000


def test_what_two_meters_saw_of_an_hour_is_known(books: Books) -> None:
    hour = books.hour({0: 1000}, hour=28)
    books.tell(hour)
    books.tell(hour, books.hour({0: 1000}, hour=29), by="m2")
    (board,) = ledger_facts(books.url).boards
    assert board.most_covered_ms == 2 * HOUR_S * 1000
