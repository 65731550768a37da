"""Figures over time on a real PostgreSQL: what is summed up, deleted, and lost with a daemon."""

import json
import math
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from quotas import until_daemon_leads, until_in_force
from stand_ins.scripted import settings
from waiting import until

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.history_messages import HistoryAnswer, HistoryRequest
from slicewise.sandbox.cluster import Sandbox
from slicewise.slurm_plugin.ledger.history_answers import history_answer
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.common.history import (
    HOUR_S,
    KEPT_S,
    MINUTE_S,
    TEN_S,
    ClusterFigures,
    HistorySample,
    HistorySteps,
    ServiceFigures,
    TenantFigures,
)

pytestmark = pytest.mark.integration

T0_S = 1_790_000_000 // HOUR_S * HOUR_S


def sample(
    at_s: int, used: int, p95: float | None = 40.0, left: int | None = None
) -> HistorySample:
    return HistorySample(
        at_s=T0_S + at_s,
        cluster=ClusterFigures(used, 0, 7000 - used, 0, 0, 0, 0),
        tenants=(TenantFigures("vision", 4000, used, 0, 0, 0, 0, left),),
        services=(ServiceFigures("vision", "bert", 1, 2, 0, 1.5, p95),),
    )


def steps(stored_s: int, count: int, step_s: int | None = None) -> HistorySteps:
    step_s = step_s or stored_s
    return HistorySteps(stored_s, step_s, tuple(T0_S + step_s * each for each in range(count)))


def used(ledger: Ledger, of: HistorySteps) -> Mapping[int, tuple[float | None, float | None]]:
    """Mean and maximum of what vision used, by seconds since the begin."""
    found = ledger.history.rows("vision", "", of)
    return {at_s - T0_S: (row["in_use"], row["max_in_use"]) for at_s, row in sorted(found.items())}


def test_a_minute_is_the_mean_of_its_looks_and_a_missing_minute_a_gap(ledger: Ledger):
    looks = [sample(at_s, 1000) for at_s in (0, 10, 20)] + [sample(30, 4000), sample(130, 500)]
    ledger.history.add(looks)
    ledger.history.sum_up(T0_S + 180)
    assert used(ledger, steps(MINUTE_S, 3)) == {0: (1750, 4000), 120: (500, 500)}
    # A mean of minutes counts each as often as it was looked at.
    assert used(ledger, steps(MINUTE_S, 1, 300)) == {0: (1500, 4000)}
    assert len(used(ledger, steps(TEN_S, 30))) == 5


def test_what_is_not_over_is_not_summed_up(ledger: Ledger):
    ledger.history.add([sample(0, 1000), sample(60, 1000)])
    ledger.history.sum_up(T0_S + 119)
    assert list(used(ledger, steps(MINUTE_S, 5))) == [0]
    assert used(ledger, steps(HOUR_S, 2)) == {}


def test_an_hour_is_made_of_its_minutes_though_nobody_led_in_between(ledger: Ledger):
    """More than one statement sums up at a time, and hours without any row."""
    ledger.history.add([sample(at_s, 600) for at_s in range(0, 2 * HOUR_S, 60)])
    ledger.history.add([sample(9 * HOUR_S, 1200)])
    for _ in range(20):
        ledger.history.sum_up(T0_S + 10 * HOUR_S)
    assert used(ledger, steps(HOUR_S, 10)) == {
        0: (600, 600),
        HOUR_S: (600, 600),
        9 * HOUR_S: (1200, 1200),
    }


def test_an_hour_waits_for_its_last_minute(ledger: Ledger):
    """One statement sums up a quarter of an hour."""
    ledger.history.add([sample(1800 + at_s, 600) for at_s in range(0, HOUR_S, 60)])
    found = []
    for _ in range(5):
        ledger.history.sum_up(T0_S + 2 * HOUR_S)
        hours = [at_s // HOUR_S for at_s in used(ledger, steps(HOUR_S, 2))]
        found.append((len(used(ledger, steps(MINUTE_S, 120))), hours))
    assert found == [(15, []), (30, [0]), (45, [0]), (60, [0]), (60, [0, 1])]


def test_a_second_leader_counts_nothing_twice(ledger: Ledger, database: str):
    """Both write the same ten seconds and sum up the same minute, as in a change of leaders."""
    with Ledger(database, "testing") as other:
        ledger.history.add([sample(0, 1000)])
        other.history.add([sample(0, 3000), sample(10, 2000)])
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda one: one.history.sum_up(T0_S + 60), (ledger, other)))
        ledger.history.add([sample(0, 9000)])
        ledger.history.sum_up(T0_S + 60)
    assert used(ledger, steps(MINUTE_S, 1)) == {0: (1500, 2000)}


def test_a_figure_that_was_not_known_is_left_out_of_the_mean(ledger: Ledger):
    ledger.history.add(
        [sample(0, 1, None, 500), sample(10, 1, 50.0, 300), sample(20, 1, None, 400)]
    )
    ledger.history.sum_up(T0_S + 60)
    (row,) = ledger.history.rows("vision", "bert", steps(MINUTE_S, 1)).values()
    assert (row["p95"], row["max_p95"], row["desired"]) == (50.0, 50.0, 2.0)
    (row,) = ledger.history.rows("vision", "", steps(MINUTE_S, 1)).values()
    assert row["budget_left"] == 400
    ledger.history.add([sample(60, 1, None)])
    ledger.history.sum_up(T0_S + 120)
    found = ledger.history.rows("vision", "bert", steps(MINUTE_S, 2))
    assert found[T0_S + 60]["p95"] is None


def test_old_rows_go_in_parts_and_only_once_they_are_summed_up(ledger: Ledger):
    ledger.history.add([sample(at_s, 1000) for at_s in range(0, HOUR_S, 10)])
    late_s = T0_S + KEPT_S[TEN_S] + HOUR_S
    assert ledger.history.forget(late_s, KEPT_S, 100)
    assert len(used(ledger, steps(TEN_S, 360))) == 360
    for _ in range(5):
        ledger.history.sum_up(late_s)
    assert not ledger.history.forget(late_s, KEPT_S, 100)
    assert len(used(ledger, steps(TEN_S, 360))) == 260
    while not ledger.history.forget(late_s, KEPT_S, 100):
        pass
    assert used(ledger, steps(TEN_S, 360)) == {}
    assert used(ledger, steps(HOUR_S, 1)) == {0: (1000, 1000)}
    ledger.history.forget(T0_S + KEPT_S[HOUR_S] + 2 * HOUR_S, KEPT_S, 100)
    ledger.history.forget_names()
    assert not ledger.history.knows("vision", "bert")


def test_rows_of_a_clock_that_was_ahead_hold_nothing_up(ledger: Ledger):
    """They were summed up while it was ahead."""
    ledger.history.add([sample(30 * HOUR_S, 9)])
    ledger.history.sum_up(T0_S + 31 * HOUR_S)
    ledger.history.add([sample(0, 1000)])
    ledger.history.sum_up(T0_S + 60)
    assert used(ledger, steps(MINUTE_S, 1)) == {0: (1000, 1000)}
    ledger.history.add([sample(60, 1000)])
    ledger.history.forget(T0_S + 70, {10: 0, 60: HOUR_S, 3600: HOUR_S}, 100)
    assert list(used(ledger, steps(TEN_S, 7))) == [60]


def test_other_clusters_rows_are_left_alone(ledger: Ledger, database: str):
    with Ledger(database, "other") as other:
        other.history.add([sample(0, 5)])
        ledger.history.add([sample(0, 1000)])
        for _ in range(5):
            ledger.history.sum_up(T0_S + HOUR_S)
        assert used(other, steps(MINUTE_S, 1)) == {}
        other.history.sum_up(T0_S + HOUR_S)
        ledger.history.forget(T0_S + 2 * KEPT_S[HOUR_S], KEPT_S, 100)
        assert used(other, steps(MINUTE_S, 1)) == {0: (5, 5)}
        assert used(ledger, steps(MINUTE_S, 1)) == {}


def test_more_than_a_column_holds_is_cut_off(ledger: Ledger):
    ledger.history.add([sample(0, 2**40)])
    assert used(ledger, steps(TEN_S, 1)) == {0: (2**31 - 1, 2**31 - 1)}


def test_what_is_no_number_is_not_known(ledger: Ledger):
    ledger.history.add([sample(0, 1, math.nan), sample(10, 1, math.inf)])
    found = ledger.history.rows("vision", "bert", steps(TEN_S, 2))
    assert [row["p95"] for row in found.values()] == [None, None]


def test_names_are_numbered_once(ledger: Ledger, database: str):
    """An identity that each look used up would end after some months."""
    for at_s in range(0, 100, 10):
        ledger.history.add([sample(at_s, 1)])
    with psycopg.connect(database.replace("+psycopg", "")) as connection:
        found = connection.execute("SELECT max(id), count(*) FROM slicewise.history_subjects")
        assert found.fetchone() == (3, 3)


def asked(ledger: Ledger, about: str, until_s: int) -> HistoryAnswer:
    request = HistoryRequest(about=about, since_s=T0_S, until_s=T0_S + until_s)
    return history_answer(ledger, settings(), request, T0_S + 300)


def test_an_answer_has_each_step_and_none_for_gaps(ledger: Ledger):
    ledger.history.add([sample(0, 1000), sample(20, 3000)])
    found = asked(ledger, "vision", 40)
    assert (found.step_s, found.times_s) == (10, tuple(T0_S + each for each in (0, 10, 20, 30)))
    series = {one.name: one for one in found.series}
    assert series["in_use"].values == (1000, None, 3000, None)
    assert series["in_use"].highest == (1000, None, 3000, None)
    assert (series["in_use"].unit, series["lent"].highest) == ("millislices", ())
    cluster = {one.name: one.values for one in asked(ledger, "cluster", 10).series}
    assert (cluster["used"], cluster["idle"]) == ((1000,), (6000,))
    service = {one.name: one.values for one in asked(ledger, "vision/bert", 10).series}
    assert (service["p95"], service["requests"]) == ((40,), (1.5,))
    assert asked(ledger, "cluster/", 10).series[0].values == (None,)


def test_a_service_without_history_is_unknown(ledger: Ledger):
    with pytest.raises(InvalidInputError, match="SW-SERVICE-UNKNOWN"):
        asked(ledger, "vision/gpt", 10)


# The sandbox's own daemon


def looks(sandbox: Sandbox) -> list[int]:
    """Seconds of which the daemon has written a look at the cluster."""
    url = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
    with psycopg.connect(url) as connection:
        query = "SELECT at_s FROM slicewise.history_cluster WHERE step_s = 10 ORDER BY at_s"
        return [at_s for (at_s,) in connection.execute(query)]


def test_a_killed_daemon_costs_a_look_and_its_successor_goes_on(sandbox: Sandbox):
    before = until(lambda: looks(sandbox))
    sandbox.kill("daemon", signal.SIGKILL)
    killed_s = time.time()
    sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
    after = until(lambda: [at_s for at_s in looks(sandbox) if at_s + TEN_S > killed_s])
    found = looks(sandbox)
    assert set(before) <= set(found)
    assert len(found) == len(set(found))
    assert after[0] % TEN_S == 0
    until_daemon_leads(sandbox)


def accounts_of(sandbox: Sandbox, user: str) -> set[str]:
    """The accounts in which the user is, those that other tests made too."""
    name = sandbox.state.users[user].name
    asked = ("sacctmgr", "-nP", "show", "associations", f"user={name}", "format=account")
    return set(sandbox.run("slurm", asked).stdout.split())


@pytest.mark.promise("A month's report is there for operators and for the users of a tenant.")
def test_a_report_of_this_month_is_for_operators_and_for_users_of_a_tenant(sandbox: Sandbox):
    set_quota = ("slicewise", "tenant-quota", "set", "vision", "--nominal", "3")
    sandbox.run("root", set_quota)
    until_in_force(sandbox, "vision")
    month = ("slicewise", "report", "--json", "--month", time.strftime("%Y-%m", time.gmtime()))
    mine = {one["tenant"] for one in json.loads(sandbox.run("alice", month).stdout)["tenants"]}
    assert "vision" in mine
    assert mine <= accounts_of(sandbox, "alice")
    every = json.loads(sandbox.run("root", month).stdout)
    assert "vision" in {one["tenant"] for one in every["tenants"]}
    assert every["slices_millislice_s"].keys() == {"used", "lent", "idle", "draining", "down"}
    others = sandbox.run("bob", (*month, "--tenant", "vision"), check=False)
    assert "SW-TENANT-UNKNOWN" in others.stderr
