"""Who pays for shared services, on a real PostgreSQL: hours are divided exactly, and once."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import psycopg
import pytest
from builders.jobs import a_running_job
from builders.tariffs import all_charges

from slicewise.cluster.language.division import divided
from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.ledger.shares import Shares, WantedShares
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.tariffs import WantedCharges
from slicewise.slurm_plugin.quota_cycle.share_hours import share_hours
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
    Transfer,
    TransferKind,
)
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy, Quota, Tenant

MONTHLY = Budget(Period.MONTH, 10**9, 0, 0)

pytestmark = pytest.mark.integration

SEED = 20261129
PERSONS, TENANTS, SERVICES, REQUESTS = 200, 50, 10, 20_000

RESERVE, EXTEND, POST, VOID, REVERSE, WAIVE, *_ = TransferKind
HOUR_S = 3600
ZONE = "Europe/Berlin"
BEGIN_S = 1_700_000_000 // HOUR_S * HOUR_S
LATER_S = BEGIN_S + 2 * HOUR_S


def tenant(name: str, parent: str = "", nominal: int = 1000) -> Tenant:
    return Tenant(name, parent, Quota(Millislices(nominal)))


POLICY: Policy = {
    each.name: each
    for each in (
        tenant("science", nominal=0),
        tenant("vision", "science"),
        tenant("chem", "science", 2000),
        tenant("optics", nominal=4000),
    )
}


def a_run(job_id: int = 1, owner: str = "vision", start_s: int = BEGIN_S) -> Run:
    """Task 0 of an array of that number, on a slice."""
    key = RunKey("testing", job_id, start_s)
    return Run(key, owner, "svc", f"{job_id}_0", {"1g.10gb": 1}, Millislices(1000), owner)


def begun(run: Run) -> Charge:
    return Charge(run, 0, (Transfer(RESERVE, 10**12, run.key.start_s + 10**9),))


def ended(run: Run, end_s: int) -> Charge:
    used = run.cost_millislices * (end_s - run.key.start_s)
    return Charge(run, 1, (Transfer(POST, used, end_s), Transfer(VOID, 10**12 - used, end_s)))


def waived(run: Run, end_s: int) -> Charge:
    used = run.cost_millislices * (end_s - run.key.start_s)
    return Charge(run, 1, (Transfer(WAIVE, used, end_s), Transfer(VOID, 10**12, end_s)))


@dataclass(frozen=True)
class Request:
    run: Run
    payer: str
    start_s: float
    end_s: float
    prompt: int = 100
    output: int = 50
    cached: int = 0
    person: str = "-"
    key_id: str = "-"

    @property
    def weight(self) -> int:
        return (self.prompt - self.cached) * 1000 + self.cached * 100 + self.output * 2000


@dataclass
class Books:
    """The ledger, and a gateway that tells of requests."""

    ledger: Ledger
    url: str
    told: int = 0
    batches: list[str] = field(default_factory=list)

    def tell(self, *requests: Request) -> None:
        """Post them as a gateway's batch; each has a number of its own."""
        records = [
            {
                "number": self.told + place,
                "payer": each.payer,
                "person": each.person,
                "key_id": each.key_id,
                "service": f"{each.run.tenant}/model",
                "array_job_id": each.run.key.job_id,
                "index": 0,
                "run_start_s": each.run.key.start_s,
                "start_ms": int(1000 * each.start_s),
                "end_ms": int(1000 * each.end_s),
                "prompt_tokens": each.prompt,
                "cached_prompt_tokens": each.cached,
                "output_tokens": each.output,
                "outcome": "whole",
            }
            for place, each in enumerate(requests)
        ]
        self.told += len(requests)
        batch = json.dumps(
            {"cluster": "testing", "boot": "gateway", "zone": ZONE, "records": records}
        )
        self.batches.append(batch)
        self.post(batch)

    def post(self, batch: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT slicewise.post_usage(%s)", (batch,))

    def share(self, now_s: int = LATER_S, idle: str = "owner", policy: Policy = POLICY) -> int:
        found = share_hours(self.ledger, policy, idle, (), now_s, zone=ZONE)  # type: ignore[arg-type]
        assert not found.refused
        return found.booked

    def used(self) -> Mapping[str, int]:
        """Slice-seconds of each tenant that has some, in millislice-seconds."""
        balances = self.ledger.budgets.balances()
        return {name: each.used for name, each in balances.items() if each.used}

    def left(self, name: str) -> int:
        return self.ledger.budgets.balances()[name].available

    def is_right(self) -> bool:
        self.ledger.charges.seal()
        found = self.ledger.audit.verify()
        assert found.faults == (), found.faults
        return found.imbalance == 0


@pytest.fixture
def books(ledger: Ledger, ledger_database: str) -> Books:
    return Books(ledger, ledger_database)


def seen(run: Run) -> JobView:
    """The run as Slurm shows it while it goes on."""
    return a_running_job(run.key.job_id, run.tenant, start_s=run.key.start_s)


def generation(
    books: Books,
    array_job_id: int,
    *,
    audience: str,
    owner: str = "vision",
    recorded_s: int = 0,
) -> None:
    directives = {"tenant": owner, "name": "model", "audience": audience}
    with psycopg.connect(books.url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO slicewise.service_generations (cluster, tenant, name, array_job_id,"
            " submitted_s, author, directives, recorded_at)"
            " VALUES ('testing', %s, 'model', %s, 1, 'a', %s, to_timestamp(%s))",
            (owner, array_job_id, json.dumps(directives), recorded_s),
        )


def an_hour(books: Books, *requests: Request, run: Run | None = None) -> Run:
    """A run of an hour, and these requests."""
    run = run or a_run()
    books.ledger.charges.post([begun(run)])
    books.ledger.charges.post([ended(run, BEGIN_S + HOUR_S)])
    books.tell(*requests)
    return run


def half_of_it() -> tuple[Request, Request]:
    """Half an hour is busy, in which chem has a quarter of the tokens."""
    run = a_run()
    return (
        Request(run, "chem", BEGIN_S, BEGIN_S + 1200),
        Request(run, "vision", BEGIN_S + 600, BEGIN_S + 1800, 300, 150),
    )


def test_who_asked_is_charged_and_the_owner_relieved(books: Books):
    an_hour(books, *half_of_it())
    assert books.used() == {"vision": 3_600_000}
    assert books.share() == 1
    assert books.used() == {"vision": 3_150_000, "chem": 450_000}
    assert (books.left("vision"), books.left("chem")) == (-3_150_000, -450_000)
    assert books.is_right()


def test_what_was_divided_is_not_divided_again(books: Books):
    an_hour(books, *half_of_it())
    assert [books.share(), books.share(), books.share(LATER_S + HOUR_S)] == [1, 0, 0]
    assert books.used() == {"vision": 3_150_000, "chem": 450_000}


def test_an_hour_waits_until_gateways_have_told_of_it(books: Books):
    an_hour(books, *half_of_it())
    assert books.share(BEGIN_S + HOUR_S + 599) == 0
    assert books.share(BEGIN_S + HOUR_S + 600) == 1


def test_what_is_told_late_corrects_the_hour(books: Books):
    run = an_hour(books, *half_of_it())
    books.share()
    books.tell(Request(run, "optics", BEGIN_S, BEGIN_S + 1, 400, 200))
    assert books.share() == 1
    assert books.used() == {"vision": 2_475_000, "chem": 225_000, "optics": 900_000}
    assert books.is_right()
    books.tell(Request(run, "optics", BEGIN_S, BEGIN_S + 1))
    assert books.share(BEGIN_S + 8 * 86_400) == 0


def test_answers_weigh_what_is_set_and_an_hour_keeps_the_weights_of_its_first_time(books: Books):
    run = a_run()
    generation(books, run.key.job_id, audience="*")
    busy = (BEGIN_S, BEGIN_S + 1800)
    asked = (Request(run, "chem", *busy, 100, 0), Request(run, "vision", *busy, 0, 25))
    an_hour(books, *asked, run=run)
    for output, used in ((4.0, {"vision": 2_700_000, "chem": 900_000}), (2.0, None)):
        weights = {"vision/model": output}
        share_hours(books.ledger, POLICY, "owner", (), LATER_S, zone=ZONE, output_weights=weights)
        assert used is None or books.used() == used
        books.tell(Request(run, "optics", *busy, 100, 0))
    # Chem and vision weigh 100 each still, and optics, which was told of once, the same.
    assert books.used() == {"vision": 2_400_000, "chem": 600_000, "optics": 600_000}
    assert books.is_right()


def test_a_run_that_goes_on_is_divided_hour_by_hour(books: Books):
    run = a_run()
    books.ledger.charges.post([begun(run)])
    books.tell(*half_of_it(), Request(run, "optics", LATER_S, LATER_S + 1800))
    # It was not seen to run, so its end is not known.
    assert books.share(LATER_S + HOUR_S + 600) == 0
    found = share_hours(
        books.ledger, POLICY, "owner", (seen(run),), LATER_S + HOUR_S + 600, zone=ZONE
    )
    assert found.booked == 2
    assert books.used() == {"chem": 450_000, "optics": 1_800_000, "vision": -2_250_000}
    books.ledger.charges.post([ended(run, LATER_S + HOUR_S)])
    assert books.used() == {"chem": 450_000, "optics": 1_800_000, "vision": 8_550_000}
    assert books.is_right()


def test_nobody_is_charged_a_share_of_what_the_operator_waives(books: Books):
    run = a_run()
    books.ledger.charges.post([begun(run)])
    books.tell(*half_of_it())
    share_hours(books.ledger, POLICY, "owner", (seen(run),), LATER_S, zone=ZONE)
    assert books.used()["chem"] == 450_000
    books.ledger.charges.post([waived(run, BEGIN_S + HOUR_S)])
    assert books.share() == 1
    assert books.used() == {}
    assert books.is_right()


def test_idle_time_is_borne_by_the_audience_by_its_quota(books: Books):
    """Half of 3,600,000 is idle: chem has 2,000 of 6,000 millislices beside the owner's."""
    an_hour(books, *half_of_it())
    generation(books, 1, audience="*")
    assert books.share(idle="audience") == 1
    assert books.used() == {"vision": 1_350_000, "chem": 450_000 + 600_000, "optics": 1_200_000}
    # Later the operator lets owners bear it: what was divided stays.
    books.tell(Request(a_run(), "chem", BEGIN_S, BEGIN_S + 1, 0, 0))
    assert books.share(idle="owner") == 1
    assert books.used()["optics"] == 1_200_000
    assert books.is_right()


def test_an_audience_bears_an_hour_without_any_request(books: Books):
    an_hour(books)
    assert books.share(idle="audience") == 0
    generation(books, 1, audience="chem")
    assert books.share(idle="audience") == 1
    assert books.used() == {"chem": 3_600_000}


def test_an_audience_bears_nothing_of_before_it_was_one(books: Books):
    an_hour(books)
    generation(books, 1, audience="chem", recorded_s=BEGIN_S + HOUR_S)
    assert books.share(idle="audience") == 0


def test_the_budget_above_a_tenant_pays_its_share(books: Books):
    above = POLICY | {"science": replace(POLICY["science"], budget=MONTHLY)}
    an_hour(books, *half_of_it())
    books.share(policy=above)
    assert (books.left("science"), books.used()["chem"]) == (-450_000, 450_000)
    assert books.ledger.shares.paid_since("science", 0) == 450_000
    assert books.ledger.shares.paid_since("vision", 0) == -450_000
    assert books.ledger.audit.used_of_budget("science", 0, LATER_S) == 450_000
    assert books.ledger.audit.used_of_budget("vision", 0, LATER_S) == 3_150_000
    # Chem gets a budget of its own: a correction goes to the one that was charged.
    books.tell(Request(a_run(), "vision", BEGIN_S, BEGIN_S + 1, 400, 200))
    books.share()
    assert books.left("science") == -225_000
    assert books.is_right()


def test_verify_sees_a_day_s_sum_of_shares_that_was_changed(books: Books):
    an_hour(books, *half_of_it())
    books.share()
    assert books.is_right()
    with psycopg.connect(books.url) as connection:
        connection.execute(
            "UPDATE slicewise.share_days SET token_millislice_s = token_millislice_s + 5"
            " WHERE tenant = 'chem'"
        )
    (fault,) = books.ledger.audit.verify().faults
    assert fault.startswith("shares of chem in runs of vision")


def test_entries_can_not_be_changed_and_verify_sees_what_was(books: Books):
    an_hour(books, *half_of_it())
    books.share()
    assert books.is_right()
    with psycopg.connect(books.url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.RestrictViolation):
            connection.execute("UPDATE slicewise.share_entries SET amount = amount + 1")
        with pytest.raises(psycopg.errors.RestrictViolation):
            connection.execute("DELETE FROM slicewise.share_entries")
        connection.execute("ALTER TABLE slicewise.share_entries DISABLE TRIGGER append_only")
        connection.execute(
            "UPDATE slicewise.share_entries SET amount = amount + 1 WHERE tenant = 'chem'"
        )
    faults = books.ledger.audit.verify().faults
    assert sum(fault.startswith("share ") for fault in faults) == 4
    assert any(fault.startswith("hour ") for fault in faults)
    assert any(fault.startswith("seal ") for fault in faults)


class KilledError(Exception):
    """The daemon dies."""


@dataclass
class KilledShares:
    """Books that die before or after one of their transactions, as ``random`` says."""

    of: Shares
    random: Random

    def due(self, *args: Any) -> Any:
        return self.of.due(*args)

    def book(self, divisions: Any, zone: str) -> int:
        if self.random.random() < 0.05:
            raise KilledError
        booked = self.of.book(divisions, zone)
        if self.random.random() < 0.05:
            raise KilledError
        return booked


def a_months_work(random: Random) -> tuple[Policy, list[Run], list[Request]]:
    """Tenants below four groups; of each service a few runs; requests of all to all of them."""
    groups = {f"g{n}": tenant(f"g{n}", nominal=0) for n in range(4)}
    names = [f"t{n:02}" for n in range(TENANTS)]
    members = {name: tenant(name, random.choice(list(groups))) for name in names}
    runs = [
        replace(a_run(100 * service + n, names[service], BEGIN_S + random.randrange(40_000)),
                cost_millislices=Millislices(random.choice((1000, 1999, 7000))))
        for service in range(SERVICES)
        for n in range(1, 4)
    ]  # fmt: skip
    people = [(f"p{n:03}", random.choice(names)) for n in range(PERSONS)]
    requests = []
    for _ in range(REQUESTS):
        run, (person, payer) = random.choice(runs), random.choice(people)
        start_s = run.key.start_s + random.randrange(39_000_000) / 1000
        prompt = random.randrange(3000)
        requests.append(
            Request(run, payer, start_s, start_s + random.randrange(60_000) / 1000, prompt,
                    random.randrange(800), random.randrange(prompt + 1), person,
                    f"{person}-{random.randrange(2)}")
        )  # fmt: skip
    return groups | members, runs, requests


def shared_however_often_it_is_killed(books: Books, policy: Policy, random: Random) -> int:
    """Divide all that is due by daemons that die; return how often one did."""
    kills = 0
    while True:
        with Ledger(books.url, "testing") as ledger:
            ledger.shares = KilledShares(ledger.shares, random)  # type: ignore[assignment]
            try:
                share_hours(ledger, policy, "audience", (), BEGIN_S + 2 * 86_400, zone=ZONE)
            except KilledError:
                kills += 1
            else:
                return kills


COSTS = """
SELECT service, payer, person, key_id, day, sum(requests)::bigint AS requests,
       sum(prompt_tokens)::bigint AS prompts, sum(cached_prompt_tokens)::bigint AS cached,
       sum(output_tokens)::bigint AS outputs, sum(millislice_s)::bigint AS millislice_s
  FROM slicewise.usage_costs GROUP BY 1, 2, 3, 4, 5
"""


def statement(books: Books, *about: str) -> Mapping[tuple[str, ...], int]:
    with psycopg.connect(books.url) as connection:
        columns = ", ".join(about)
        query = f"SELECT {columns}, sum(millislice_s)::bigint FROM slicewise.usage_costs"  # noqa: S608 -- constants
        rows = connection.execute(f"{query} GROUP BY {columns}").fetchall()
    return {row[:-1]: row[-1] for row in rows if row[-1]}


def summed(lines: Mapping[tuple[str, ...], int], place: int) -> Mapping[str, int]:
    sums: Counter[str] = Counter()
    for about, amount in lines.items():
        sums[about[place]] += amount
    return sums


def test_every_statement_adds_up(books: Books):  # noqa: C901 -- each loop is one sum
    random = Random(SEED)  # noqa: S311 -- no secret
    policy, runs, requests = a_months_work(random)
    for service in range(SERVICES // 2):
        for n in range(1, 4):
            generation(books, 100 * service + n, audience="*", owner=f"t{service:02}")
    books.ledger.charges.post([begun(run) for run in runs])
    ends_s = {run.key.job_id: run.key.start_s + random.randrange(3600, 39_000) for run in runs}
    books.ledger.charges.post([ended(run, ends_s[run.key.job_id]) for run in runs])
    parts = [requests[at : at + 400] for at in range(0, REQUESTS, 400)]
    for part in parts[:40]:
        books.tell(*part)
    kills = shared_however_often_it_is_killed(books, policy, random)
    for part in parts[40:]:
        books.tell(*part)
    for batch in books.batches:
        books.post(batch)
    kills += shared_however_often_it_is_killed(books, policy, random)
    assert kills > 2
    assert (
        share_hours(books.ledger, policy, "audience", (), BEGIN_S + 2 * 86_400, zone=ZONE).booked
        == 0
    )
    assert books.is_right()

    used = sum(run.cost_millislices * (ends_s[run.key.job_id] - run.key.start_s) for run in runs)
    assert sum(books.used().values()) == used
    with psycopg.connect(books.url, row_factory=psycopg.rows.namedtuple_row) as connection:
        lines = connection.execute(COSTS).fetchall()
    # To the token, of each tenant, person, key and service.
    told, stated = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for each in requests:
        about = f"{each.run.tenant}/model", each.payer, each.person, each.key_id
        told[(*about, "requests")] += 1
        told[(*about, "prompts")] += each.prompt
        told[(*about, "cached")] += each.cached
        told[(*about, "outputs")] += each.output
    for line in lines:
        for name in ("requests", "prompts", "cached", "outputs"):
            stated[(*line[:4], name)] += getattr(line, name)
    assert +stated == +told
    # To the millislice-second: each statement is a sum of those below it, and of what was booked.
    keys = statement(books, "service", "payer", "person", "key_id")
    assert summed(keys, 0) == summed(statement(books, "service"), 0)
    assert summed(keys, 1) == summed(statement(books, "payer"), 0)
    assert summed(keys, 2) == summed(statement(books, "person"), 0)
    assert summed(keys, 3) == summed(statement(books, "key_id"), 0)
    divided_s = sum(keys.values())
    owners = {f"t{service:02}" for service in range(SERVICES)}
    others = {name: amount for name, amount in summed(keys, 1).items() if name not in owners}
    assert others == {name: amount for name, amount in books.used().items() if name not in owners}
    rest = {name: books.used()[name] - summed(keys, 1).get(name, 0) for name in owners}
    # What was not divided is an owner's: hours in which nobody asked, and that have no audience.
    assert sum(rest.values()) == used - divided_s
    assert all(amount >= 0 for amount in rest.values())
    # A person's part of a tenant's day is as the rule divides it.
    days: dict[Any, dict[tuple[str, str], tuple[int, int]]] = defaultdict(dict)
    for line in lines:
        if line.requests:
            weight = (line.prompts - line.cached) * 1000 + line.cached * 100 + line.outputs * 2000
            of = line.service, line.day, line.payer
            days[of][line.person, line.key_id] = weight, line.millislice_s
    for people in days.values():
        total = sum(amount for _, amount in people.values())
        parts_of = divided(total, {who: weight for who, (weight, _) in people.items()})
        assert {who: amount for who, (_, amount) in people.items() if amount} == parts_of
    its_statements_add_up(books, used, told)


def its_statements_add_up(books: Books, used: int, told: Mapping[tuple[str, ...], int]) -> None:
    """Own runs, less what others took of them, and shares are what each tenant's account has."""
    runs = books.ledger.audit.statement(None, 0, LATER_S).rows
    shares, after = list[ShareLine](), None
    while page := books.ledger.shares.lines(WantedShares(after=after), ZONE, 97):
        shares += page
        after = (page[-1].start_s, page[-1].tenant, page[-1].payer, page[-1].service)
    whole = totals(runs, shares)
    assert sum(total.used_millislice_s for total in whole) == used
    assert {
        total.tenant: total.charged_millislice_s for total in whole if total.charged_millislice_s
    } == books.used()
    days = [Day(BEGIN_S // 86_400 * 86_400 + n * 86_400 - HOUR_S, f"{n}") for n in range(4)]
    for lines in (
        by_service(runs, shares),
        by_user(runs, shares),
        by_day(runs, days, shares=shares),
    ):
        for total in whole:
            mine = [line for line in lines if line.tenant == total.tenant]
            for name in ("used", "relieved", "shared", "charged"):
                field = f"{name}_millislice_s"
                assert sum(getattr(one, field) for one in mine) == getattr(total, field)
    billed = Counter[str]()
    book = books.ledger.tariffs.book(ZONE)
    spans = price_spans((), days[0].start_s, days[-1].start_s, ZONE)
    for line in all_charges(books.ledger, WantedCharges(), spans, book, days[-1].start_s):
        if line.of.kind != "request":
            billed[line.of.tenant] += line.amount
    assert {tenant: amount for tenant, amount in billed.items() if amount} == books.used()
    tokens = Counter[tuple[str, str]]()
    for (_, payer, _, _, name), amount in told.items():
        tokens[payer, name] += amount
    names = ("requests", "prompts", "cached", "outputs")
    assert (
        +Counter(
            {
                (total.tenant, name): amount
                for total in whole
                for name, amount in zip(
                    names,
                    (
                        *(total.requests, total.prompt_tokens),
                        *(total.cached_prompt_tokens, total.output_tokens),
                    ),
                    strict=True,
                )
            }
        )
        == +tokens
    )
    # A tenant's own statement has the same of it.
    (name, *_) = sorted(books.used())
    own = list(books.ledger.shares.lines(WantedShares(name), ZONE, 10**6))
    assert [line for line in own if line.tenant == name] == [
        line for line in shares if line.tenant == name
    ]
