"""Loans are of whole jobs, on real Slurm."""

from collections.abc import Iterator

import pytest
from jobs_as_users import Users
from quotas import until_in_force
from waiting import until

from sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

# Of this type there is one instance; it costs 3.5 slices.
RARE = "--gres=gpu:3g.40gb:1"


@pytest.fixture
def users(sandbox: Sandbox) -> Iterator[Users]:
    """idle has 3.5 slices and runs nothing; vision and nlp have none of their own."""
    users = Users(sandbox)
    sandbox.run("root", ("sacctmgr", "-i", "add", "account", "name=idle"))
    users.slicewise("tenant", "add", "idle")
    lender = ("tenant-quota", "set", "idle", "--nominal", "3.5", "--lending-limit", "3.5")
    users.slicewise(*lender)
    for borrower in ("vision", "nlp"):
        quota = f"tenant-quota set {borrower} --nominal 0 --borrowing-limit 3.5"
        users.slicewise(*quota.split())
    until_in_force(sandbox, "idle", "vision", "nlp")
    yield users
    users.clear()
    users.slicewise("tenant", "remove", "idle", "--yes")
    sandbox.run("root", ("sacctmgr", "-i", "delete", "account", "name=idle"))


def test_of_two_that_wait_for_half_of_what_is_idle_each_starts_in_turn(users: Users) -> None:
    """By fair shares alone each had 1.75 slices, and neither ever started."""
    waiting = [users.submit(user, "sbatch", RARE).jobs[0].job_id for user in ("alice", "bob")]

    def running() -> list[str]:
        return [one for one in waiting if users.job(one)["JobState"] == "RUNNING"]

    (first,) = until(running)
    (second,) = set(waiting) - {first}
    users.sandbox.run("root", ("scancel", first))
    until(lambda: running() == [second])


def test_a_job_that_costs_more_than_its_tenant_s_own_part_has_that_and_a_loan(
    users: Users,
) -> None:
    """2 slices of vision's own, which no job of its own QOS wants, and 1.5 of another's."""
    for words in (
        "tenant-quota set idle --nominal 2 --lending-limit 2",
        "tenant-quota set vision --nominal 2 --borrowing-limit 2",
    ):
        users.slicewise(*words.split())
    until_in_force(users.sandbox, "idle", "vision")
    (job,) = users.submit("alice", "sbatch", RARE).jobs
    until(lambda: users.job(job.job_id)["JobState"] == "RUNNING")
    assert users.job(job.job_id)["QOS"] == "slicewise_vision_borrowed"
