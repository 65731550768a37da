"""Orders, API keys, sums of observing and the launcher's states in a real PostgreSQL."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from slicewise.cluster.language.errors import InvalidInputError, OutsideError, UnreachableError
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.key_messages import GrantsAnswer, KeyGrant
from slicewise.cluster.rpc.order_messages import ServiceOrder
from slicewise.cluster.rpc.read_messages import GenerationRecord
from slicewise.cluster.runtime.database import postgres_engine
from slicewise.launcher.process.store import StateStore
from slicewise.sandbox.cluster import Sandbox
from slicewise.slurm_plugin.ledger import generations, keys, schema_revisions
from slicewise.slurm_plugin.ledger.keys import MOST_KEYS, NewKey
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.types import (
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)
from slicewise.slurm_plugin.rules.common.observations import (
    DAY_S,
    LentBetween,
    Observations,
    QuotaUse,
    Submissions,
)
from slicewise.slurm_plugin.rules.services.orders import Ordered

pytestmark = pytest.mark.integration

BERT, GPT = ("vision", "bert"), ("nlp", "gpt")
HASHES = [f"{number:064x}" for number in range(MOST_KEYS + 1)]
IDS = [f"{number:012x}" for number in range(MOST_KEYS + 1)]


@pytest.fixture
def role_url(sandbox: Sandbox, database: str, ledger: Ledger) -> Iterator[Callable[..., str]]:
    """Gives a role of its own a duty, and its URL."""
    name = f"role{uuid4().hex}"
    server = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")

    def url_as(duty: schema_revisions.Duty) -> str:
        schema_revisions.grant(database, name, duty)
        url = postgres_engine(database).url.set(drivername="postgresql", username=name)
        return url.render_as_string(hide_password=False)

    yield url_as
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


def ordered(array_job_id: int = 814, **order: float) -> Ordered:
    return Ordered(ServiceOrder.model_validate(order), array_job_id)


# Orders


def test_the_newest_order_of_a_service_holds_until_it_is_over(ledger: Ledger) -> None:
    assert ledger.orders.standing() == {}
    ledger.orders.write(BERT, "scale", ordered(max_replicas=2), "alice")
    ledger.orders.write(GPT, "restart", ordered(820, restart_s=7.25), "bob")
    ledger.orders.write(BERT, "end", ordered(max_replicas=2, delete_s=9.5), "alice")
    assert ledger.orders.standing() == {
        BERT: ordered(max_replicas=2, delete_s=9.5),
        GPT: ordered(820, restart_s=7.25),
    }
    ledger.orders.write(BERT, "over", ordered(max_replicas=2), "slicewise")
    assert ledger.orders.standing() == {GPT: ordered(820, restart_s=7.25)}
    ledger.orders.write(BERT, "scale", ordered(min_replicas=1), "alice")
    assert ledger.orders.standing()[BERT] == ordered(min_replicas=1)


def test_whether_an_order_is_new_is_known_by_its_number(ledger: Ledger, database: str) -> None:
    assert ledger.orders.newest_id() == 0
    ledger.orders.write(BERT, "scale", ordered(max_replicas=2), "alice")
    first = ledger.orders.newest_id()
    ledger.orders.write(GPT, "restart", ordered(820, restart_s=7.25), "bob")
    second = ledger.orders.newest_id()
    assert 0 < first < second == ledger.orders.newest_id()
    with Ledger(database, "other") as other:
        assert other.orders.newest_id() == 0


def test_clusters_that_share_a_database_do_not_share_orders_keys_or_states(
    ledger: Ledger, database: str
) -> None:
    ledger.orders.write(BERT, "scale", ordered(max_replicas=2), "alice")
    ledger.keys.add(NewKey(IDS[0], "vision", "ci", HASHES[0], "alice"))
    StateStore(database, "testing").save({"vision/bert": {"a": 1}}, ())
    StateStore(database, "testing").curves.save({"vision/1": {"b": 1}}, ())
    with Ledger(database, "other") as other:
        assert (other.orders.standing(), other.keys.all()) == ({}, ())
        assert other.keys.grants() == GrantsAnswer()
    assert StateStore(database, "other").load() == StateStore(database, "other").curves.load() == {}
    assert StateStore(database, "testing").load() == {"vision/bert": {"a": 1}}
    assert StateStore(database, "testing").curves.load() == {"vision/1": {"b": 1}}


def test_no_order_and_no_key_is_ever_altered(ledger: Ledger, database: str) -> None:
    ledger.orders.write(BERT, "scale", ordered(max_replicas=2), "alice")
    ledger.keys.add(NewKey(IDS[0], "vision", "ci", HASHES[0], "alice"))
    ledger.keys.revoke(IDS[0], "alice")
    ledger.keys.open_tenant("vision", "alice")
    ledger.keys.block(IDS[0], "alice", is_blocked=True)
    ledger.generations.record([submitted(814)])
    for table in (
        "service_orders",
        "service_generations",
        "api_keys",
        "api_key_revocations",
        "api_key_blocks",
        "api_key_openings",
    ):
        for statement in ("UPDATE {} SET author = 'x'", "DELETE FROM {}"):
            with (
                psycopg.connect(database) as connection,
                pytest.raises(psycopg.Error, match="append-only"),
            ):
                connection.execute(SQL(statement).format(Identifier("slicewise", table)))


def test_an_impossible_order_is_refused_by_the_database_itself(ledger: Ledger) -> None:
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        ledger.orders.write(BERT, "scale", ordered(min_replicas=3, max_replicas=2), "alice")
    assert ledger.orders.standing() == {}


def test_a_blocked_key_lets_nobody_in_until_it_is_unblocked(ledger: Ledger) -> None:
    # It may be blocked before it is there: then it never lets in in between.
    ledger.keys.block(IDS[0], "olga", is_blocked=True)
    ledger.keys.add(NewKey(IDS[0], "vision", "ci", HASHES[0], "alice"))
    ledger.keys.add(NewKey(IDS[1], "vision", "ci", HASHES[1], "alice"))
    before = ledger.keys.grants()
    assert before.keys.keys() == {HASHES[1]}
    assert [key.is_blocked for key in ledger.keys.all()] == [True, False]
    # It is there all the same: its tenant's services want keys, and can't be opened.
    ledger.keys.revoke(IDS[1], "alice")
    assert ledger.keys.grants().wanted_from_s.keys() == before.wanted_from_s.keys() == {"vision"}
    with pytest.raises(InvalidInputError, match="SW-KEY-REVOKE"):
        ledger.keys.open_tenant("vision", "alice")
    ledger.keys.block(IDS[0], "olga", is_blocked=False)
    assert ledger.keys.grants().keys.keys() == {HASHES[0]}


def test_nobody_has_as_many_keys_as_a_tenant_may_have(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MOST_KEYS", 1)
    monkeypatch.setattr(keys, "MOST_OF_TENANT", 3)
    made = [NewKey(f"{n:012x}", "vision", f"o-{n}", f"{n:064x}", "m", person="-") for n in range(4)]
    for new in made[:3]:
        ledger.keys.add(new)
    with pytest.raises(InvalidInputError, match="'vision' has 3 keys already"):
        ledger.keys.add(made[3])


# Generations


def submitted(array_job_id: int, tenant: str = "vision", name: str = "bert") -> GenerationRecord:
    return GenerationRecord(
        array_job_id=array_job_id,
        submitted_s=1_700_000_000 + array_job_id,
        tenant=tenant,
        name=name,
        author="alice",
        directives={"model": "m", "environment": "A=b%20c"},
    )


def test_generations_are_recorded_once_and_read_by_name_and_tenant(
    ledger: Ledger, role_url: Callable[..., str]
) -> None:
    first, second, other = submitted(814), submitted(820), submitted(815, "nlp")
    with Ledger(role_url("daemon"), "testing") as as_daemon:
        as_daemon.generations.record([first, other, submitted(816, name="gpt")])
        again = first.model_copy(update={"submitted_s": 1_800_000_000})
        as_daemon.generations.record([again, second])
    assert ledger.generations.named("bert", None) == (second, other, first)
    assert ledger.generations.named("bert", {"vision"}) == (second, first)
    assert ledger.generations.named("bert", set()) == ()
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(generations, "MOST", 1)
        assert ledger.generations.named("bert", None) == (second, other)
        fewer.setattr(generations, "MOST_OF_ALL", 1)
        assert ledger.generations.named("bert", None) == (second,)
    changed = first.model_copy(update={"directives": {"model": "n"}})
    ledger.generations.record([changed])
    assert ledger.generations.named("bert", {"vision"}) == (changed, second, first)
    with Ledger(role_url("reader"), "other") as elsewhere:
        assert elsewhere.generations.named("bert", None) == ()


def test_old_generations_that_never_ran_are_forgotten(
    ledger: Ledger, database: str, role_url: Callable[..., str]
) -> None:
    """A tenant could fill the ledger with services that it cancelled at once."""
    ran, living, never, young = (submitted(number) for number in (814, 820, 830, 840))
    ledger.generations.record([ran, living, never])
    run = Run(
        RunKey("testing", 900, 100), "vision", "alice", "814_3", {}, Millislices(1000), "vision"
    )
    reserve = Transfer(TransferKind.RESERVE, MillisliceSeconds(1000), 160)
    ledger.charges.post([Charge(run, 0, (reserve,))])
    aged = (
        "ALTER TABLE slicewise.service_generations DISABLE TRIGGER append_only",
        "UPDATE slicewise.service_generations SET recorded_at = now() - interval '100 days'",
        "ALTER TABLE slicewise.service_generations ENABLE TRIGGER append_only",
    )
    with psycopg.connect(database) as connection:
        for statement in aged:
            connection.execute(statement)
    ledger.generations.record([young])
    with Ledger(role_url("daemon"), "testing") as own:
        # Neither a clock that is ahead nor a short setting makes young ones old.
        assert own.generations.forget(time.time() - 200 * 86_400, [820], 10) == 0
        assert own.generations.forget(time.time() + 1e9, [820], 10) == 1
        assert own.generations.forget(time.time() + 1e9, [820], 10) == 0
        assert own.generations.named("bert", None) == (young, living, ran)
        assert own.generations.forget(time.time(), [], 10) == 1
    assert ledger.generations.named("bert", None) == (young, ran)


# Keys


def granted(ledger: Ledger) -> GrantsAnswer:
    """What is granted now, but for since when keys are wanted."""
    grants = ledger.keys.grants().at(time.time())
    return grants.model_copy(update={"wanted_from_s": {}})


def test_a_key_lets_in_until_it_is_revoked_and_its_tenant_stays_protected(ledger: Ledger) -> None:
    for number in range(2):
        ledger.keys.add(NewKey(IDS[number], "vision", "ci", HASHES[number], "alice"))
    both = {
        HASHES[number]: KeyGrant(opens="vision", key_id=IDS[number], person="alice")
        for number in range(2)
    }
    assert granted(ledger) == GrantsAnswer(keys=both, protected=("vision",))
    for _ in range(2):
        ledger.keys.revoke(IDS[0], "olga")
    left = GrantsAnswer(keys={HASHES[1]: both[HASHES[1]]}, protected=("vision",))
    assert granted(ledger) == left
    assert [(key.key_id, key.revoked_s is None) for key in ledger.keys.all()] == [
        (IDS[0], False),
        (IDS[1], True),
    ]
    ledger.keys.revoke(IDS[1], "olga")
    assert granted(ledger) == GrantsAnswer(protected=("vision",))


def test_a_tenant_without_a_valid_key_is_opened_until_one_is_made_again(ledger: Ledger) -> None:
    ledger.keys.add(NewKey(IDS[0], "vision", "ci", HASHES[0], "alice"))
    ledger.keys.add(NewKey(IDS[1], "nlp", "ci", HASHES[1], "bob"))
    with pytest.raises(InvalidInputError, match="SW-KEY-REVOKE"):
        ledger.keys.open_tenant("vision", "alice")
    ledger.keys.revoke(IDS[0], "alice")
    ledger.keys.open_tenant("vision", "alice")
    of_bob = KeyGrant(opens="nlp", key_id=IDS[1], person="bob")
    assert granted(ledger) == GrantsAnswer(keys={HASHES[1]: of_bob}, protected=("nlp",))
    ledger.keys.add(NewKey(IDS[2], "vision", "ci", HASHES[2], "alice"))
    assert granted(ledger).protected == ("nlp", "vision")


def test_a_tenant_wants_keys_from_a_moment_on_and_may_have_them_before(ledger: Ledger) -> None:
    now_s = int(time.time())
    ledger.keys.require_from("vision", now_s + 3600, "alice")
    ledger.keys.add(NewKey(IDS[0], "vision", "ci", HASHES[0], "alice"))
    grants = ledger.keys.grants()
    assert grants.wanted_from_s == {"vision": now_s + 3600}
    assert (grants.at(now_s).protected, grants.at(now_s + 3600).protected) == ((), ("vision",))
    # The last word holds, whichever it is.
    ledger.keys.require_from("vision", now_s - 60, "alice")
    assert granted(ledger).protected == ("vision",)
    ledger.keys.revoke(IDS[0], "alice")
    ledger.keys.open_tenant("vision", "alice")
    assert granted(ledger).protected == ()


def test_a_key_is_its_person_s_whoever_made_it(ledger: Ledger) -> None:
    ledger.keys.add(NewKey(IDS[0], "vision", "ci", HASHES[0], "olga", person="alice"))
    ledger.keys.add(NewKey(IDS[1], "vision", "ci", HASHES[1], "olga"))
    shown = {key.key_id: (key.created_by, key.person) for key in ledger.keys.all()}
    assert shown == {IDS[0]: ("olga", "alice"), IDS[1]: ("olga", "olga")}
    grants = ledger.keys.grants(lambda person, tenant: (person, tenant) == ("alice", "vision"))
    assert {key.person for key in grants.keys.values()} == {"olga"}


def test_a_tenant_s_keys_are_bounded_over_all_persons(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MOST_OF_TENANT", 2)
    for number in range(2):
        ledger.keys.add(NewKey(IDS[number], "vision", "ci", HASHES[number], f"user{number}"))
    with pytest.raises(InvalidInputError, match="'vision' has 2 keys"):
        ledger.keys.add(NewKey(IDS[2], "vision", "ci", HASHES[2], "carol"))


def test_a_key_that_is_sent_twice_is_made_once(ledger: Ledger) -> None:
    """A command sends it to the other daemon of a pair if the first one gave no answer."""
    made = (IDS[0], "vision", "ci", HASHES[0], "alice")
    ledger.keys.add(NewKey(*made))
    ledger.keys.add(NewKey(*made))
    assert [key.key_id for key in ledger.keys.all()] == [IDS[0]]
    for other in (
        (IDS[0], "vision", "ci", HASHES[1], "alice"),
        (IDS[1], "vision", "ci", HASHES[0], "alice"),
        (IDS[0], "vision", "ci", HASHES[0], "bob"),
    ):
        with pytest.raises(InvalidInputError, match="SW-KEY-TWICE"):
            ledger.keys.add(NewKey(*other))
    ledger.keys.revoke(IDS[0], "alice")
    with pytest.raises(InvalidInputError, match="SW-KEY-TWICE"):
        ledger.keys.add(NewKey(*made))


def test_a_key_of_one_service_expires_and_its_last_use_is_kept(ledger: Ledger) -> None:
    ends_s = int(time.time()) + 3600
    ledger.keys.add(NewKey(IDS[0], "vision", "ci", HASHES[0], "alice", "bert", ends_s))
    ledger.keys.add(NewKey(IDS[1], "vision", "ci", HASHES[1], "alice", expires_s=1))
    grant = KeyGrant(opens="vision/bert", key_id=IDS[0], person="alice", expires_s=ends_s)
    assert granted(ledger) == GrantsAnswer(keys={HASHES[0]: grant}, protected=("vision",))
    for used_s in (5.0, 7.5, 6.0):
        ledger.keys.note_uses({HASHES[0]: used_s, HASHES[2]: used_s})
    shown = {key.key_id: (key.service, key.expires_s, key.used_s) for key in ledger.keys.all()}
    assert shown == {IDS[0]: ("bert", ends_s, 7.5), IDS[1]: ("", 1.0, None)}
    # One that has expired does not count as valid.
    ledger.keys.revoke(IDS[0], "alice")
    ledger.keys.open_tenant("vision", "alice")
    assert granted(ledger) == GrantsAnswer()


def test_a_tenant_has_so_many_keys_even_if_all_are_made_at_once(ledger: Ledger) -> None:
    for number in range(MOST_KEYS - 1):
        ledger.keys.add(NewKey(IDS[number], "vision", "ci", HASHES[number], "alice"))

    def add(number: int) -> str:
        try:
            ledger.keys.add(NewKey(IDS[number], "vision", "ci", HASHES[number], "alice"))
        except InvalidInputError as error:
            return error.refusal.code
        return ""

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(add, (MOST_KEYS - 1, MOST_KEYS))) == ["", "SW-KEY-REVOKE"]
    ledger.keys.revoke(IDS[0], "alice")
    free = next(i for i in (MOST_KEYS - 1, MOST_KEYS) if IDS[i] not in str(ledger.keys.all()))
    assert add(free) == ""


def test_an_id_or_a_hash_that_is_there_is_refused(ledger: Ledger) -> None:
    ledger.keys.add(NewKey(IDS[0], "vision", "ci", HASHES[0], "alice"))
    for key_id, sha256 in ((IDS[0], HASHES[1]), (IDS[1], HASHES[0])):
        with pytest.raises(InvalidInputError, match="SW-KEY-TWICE"):
            ledger.keys.add(NewKey(key_id, "nlp", "ci", sha256, "bob"))
    assert len(ledger.keys.all()) == 1


def test_what_waits_for_a_lock_is_given_up_before_anybody_is_told_that_it_failed(
    ledger: Ledger, database: str
) -> None:
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE slicewise.service_orders")
        with pytest.raises(UnreachableError, match="SW-DATABASE-BUSY"):
            ledger.orders.write(BERT, "restart", ordered(restart_s=7.0), "alice")
    assert ledger.orders.standing() == {}


# States


def test_states_are_replaced_and_forgotten(database: str, ledger: Ledger) -> None:
    store = StateStore(database, "testing")
    assert store.load() == {}
    store.save({"vision/bert": {"a": [1, None]}, "nlp/gpt": {}}, ())
    store.save({"vision/bert": {"a": 2.5}}, ("nlp/gpt", "nlp/never"))
    assert store.load() == {"vision/bert": {"a": 2.5}}


# Roles


def test_the_daemons_role_orders_and_makes_keys_and_sees_no_state(
    role_url: Callable[..., str],
) -> None:
    url = role_url("daemon")
    with Ledger(url, "testing") as own:
        own.orders.write(BERT, "scale", ordered(max_replicas=2), "alice")
        own.keys.add(NewKey(IDS[0], "vision", "ci", HASHES[0], "alice"))
        own.keys.revoke(IDS[0], "alice")
        assert (len(own.orders.standing()), len(own.keys.all())) == (1, 1)
    with pytest.raises(OutsideError, match="SW-DATABASE-RIGHTS"):
        StateStore(url, "testing").load()


def test_the_launchers_role_keeps_its_states_and_sees_nothing_else(
    role_url: Callable[..., str],
) -> None:
    # Whatever it was allowed before is taken away.
    role_url("daemon")
    url = role_url("launcher")
    store = StateStore(url, "testing")
    store.save({"vision/bert": {}}, ())
    store.save({}, ("vision/bert",))
    assert store.load() == {}
    assert store.lock("gw1").hold()
    with Ledger(url, "testing") as own:
        for read in (own.orders.standing, own.keys.all, own.tenants.policy):
            with pytest.raises(OutsideError, match="SW-DATABASE-RIGHTS"):
                read()


@pytest.mark.parametrize("duty", ["operator", "reader"])
def test_no_other_role_orders_or_makes_keys(
    role_url: Callable[..., str], duty: schema_revisions.Duty
) -> None:
    url = role_url(duty)
    with Ledger(url, "testing") as own:
        with pytest.raises(OutsideError, match="SW-DATABASE-RIGHTS"):
            own.orders.write(BERT, "scale", ordered(max_replicas=2), "olga")
        with pytest.raises(OutsideError, match="SW-DATABASE-RIGHTS"):
            own.keys.add(NewKey(IDS[0], "vision", "ci", HASHES[0], "olga"))
    with pytest.raises(OutsideError, match="SW-DATABASE-RIGHTS"):
        StateStore(url, "testing").load()


def test_a_database_without_the_launchers_schema_says_what_to_do(database: str) -> None:
    with pytest.raises(InvalidInputError, match="SW-DATABASE-OLD"):
        StateStore(database, "testing").load()


# Sums of observing


def observed(day_s: int, times: int = 1) -> Observations:
    counts = {"submissions": 2, "moved_qos": 1, "moved_type": 0, "asked_millislices": 2000}
    sums = {name: times * count for name, count in counts.items()}
    kind = ("observe", "vision", "alice", "", "1g.10gb", False)
    return Observations(
        (Submissions(day_s, *kind, **sums),),
        (LentBetween(day_s, "nlp", "vision", 500 * times, times, 100 * times),),
        (QuotaUse(day_s, "nlp", *(times * amount for amount in (15, 60, 30, 20, 10))),),
    )


def test_what_is_observed_adds_up_by_day_and_old_days_go(ledger: Ledger, database: str) -> None:
    today_s = 5 * DAY_S
    for day_s in (today_s - DAY_S, today_s, today_s):
        ledger.observations.add(observed(day_s), 0)
    assert ledger.observations.since(today_s) == observed(today_s, times=2)
    assert len(ledger.observations.since(0).loans) == 2
    with Ledger(database, "other") as other:
        assert other.observations.since(0) == Observations()
    ledger.observations.add(Observations(), today_s)
    assert ledger.observations.since(0) == observed(today_s, times=2)


def test_sums_of_many_processes_lose_nothing(ledger: Ledger) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: ledger.observations.add(observed(0), 0), range(12)))
    assert ledger.observations.since(0) == observed(0, times=12)
