"""A site that bills 8 a slice: Slurm counts in that, Slicewise in slices."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from jobs_as_users import Modes, Users
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

SMALL, LARGE = "--gres=gpu:1g.10gb:1", "--gres=gpu:3g.40gb:1"
"""They cost 1 and 3.5 slices."""


class Site:
    """The sandbox, and what it bills."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.users = sandbox, Users(sandbox)

    @contextmanager
    def bills(self, per_slice: str) -> Iterator[None]:
        """By slicewise.toml; slurm.conf is as it was."""
        file = self.sandbox.layout.settings_file
        before = file.read_text()
        setting = f"[cluster]\nbilling_per_slice = {per_slice}\n"
        file.write_text(before.replace("[cluster]\n", setting))
        Modes(self.sandbox).restart_daemon()
        try:
            yield
        finally:
            file.write_text(before)
            Modes(self.sandbox).restart_daemon()

    @contextmanager
    def weighs(self) -> Iterator[None]:
        """By slurm.conf, as ``compile --slurm-conf`` says it."""
        file = self.sandbox.layout.slurm_conf
        before = file.read_text()
        (line,) = (
            line
            for line in self.users.slicewise("compile", "--slurm-conf").splitlines()
            if line.startswith("# add to the line of partition gpu: ")
        )
        weights = line.partition("TRESBillingWeights=")[2]
        first, _, rest = before.partition("TRESBillingWeights=")
        file.write_text(f"{first}TRESBillingWeights={weights} {rest.partition(' ')[2]}")
        try:
            assert self.users.scontrol("root", "reconfigure")[0] == 0
            yield
        finally:
            file.write_text(before)
            assert self.users.scontrol("root", "reconfigure")[0] == 0

    def warnings(self) -> str:
        shown = self.users.slicewise("compile", "--dry-run", "--json")
        return "\n".join(json.loads(shown)["warnings"])

    def start(self, *gres: str) -> list[str]:
        """Jobs of alice."""
        return [self.users.submit("alice", "sbatch", one).jobs[0].job_id for one in gres]

    def states(self, jobs: list[str]) -> list[str]:
        return [self.users.job(one)["JobState"] for one in jobs]

    def limit(self) -> str:
        """Of vision's own QOS."""
        show = ("sacctmgr", "-nP", "show", "qos", "where", "name=slicewise_vision")
        return self.sandbox.run("root", (*show, "format=grptres")).stdout.strip()


@pytest.fixture
def site(sandbox: Sandbox) -> Iterator[Site]:
    """vision has 4.6 slices."""
    found = Site(sandbox)
    found.users.slicewise("tenant-quota", "set", "vision", "--nominal", "4.6")
    until_is(found.limit, "billing=4600")
    yield found
    found.users.clear()


def test_a_quota_starts_the_jobs_that_it_should_in_the_sites_own_unit(site: Site) -> None:
    (before,) = site.start(SMALL)
    until_is(lambda: site.states([before]), ["RUNNING"])
    with site.bills("8"):
        assert "are those of billing_per_slice = 1000, and [cluster]" in site.warnings()
        # 36.8: what does not divide is rounded down.
        until_is(site.limit, "billing=36")
        with site.weighs():
            assert "billing_per_slice" not in site.warnings()
            # Slurm goes on counting what started before by the old weights, and starts nothing.
            site.sandbox.run("root", ("slicewise-restart", "slurmctld"))
            jobs = site.start(LARGE, SMALL)
            until(lambda: {site.users.job(one)["Reason"] for one in jobs} == {"QOSGrpBilling"})
            assert site.users.job(before).billing == 1000
            site.sandbox.run("root", ("scancel", before))
            until_is(lambda: site.states(jobs), ["RUNNING", "RUNNING"])
            assert [site.users.job(one).billing for one in jobs] == [28, 8]
            (waiting,) = site.start(SMALL)
            until(lambda: site.users.job(waiting)["Reason"] == "QOSGrpBilling")
            # The daemon may have looked before the job came, or before Slurm did.
            words = "hold 4.5 of 4.6 slices; this one needs 1."
            until(lambda: words in site.users.slicewise("why", waiting, check=False))
            explained = json.loads(site.users.slicewise("why", "--limits", "vision", "--json"))
            assert explained["own_qos_limit_millislices"] == 4600
            assert explained["in_use_millislices"] == 4500
            site.sandbox.run("root", ("scancel", jobs[1]))
            until_is(lambda: site.states([waiting]), ["RUNNING"])
            site.users.clear()
