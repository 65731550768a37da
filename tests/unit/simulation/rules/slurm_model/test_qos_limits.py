"""Which limit keeps a job from its start, by Slurm's names."""

from builders.model_world import after, job, model, states

from slicewise.simulation.rules.slurm_model.job_requests import AccountLimits, QosLimits


def test_reasons_name_who_limits_what():
    billing = {"billing": 1000}
    cases = {
        "QOSGrpBilling": QosLimits(grp_tres=billing),
        "QOSGrpGRES": QosLimits(grp_tres={"gres/gpu:a100": 1}),
        "QOSGrpBillingRunMinutes": QosLimits(grp_run_mins={"billing": 1000 * 60}),
        "MaxBillingPerAccount": QosLimits(max_tres_per_account=billing),
        "QOSGrpNodeLimit": QosLimits(grp_tres={"node": 0, "billing": 0}),
    }
    for reason, limits in cases.items():
        one = model({"a100": 8})
        one.set_qos("own", limits)
        one.submit(job(2))
        after(one, 0)
        assert states(one) == {"1": ("PENDING", reason)}


def test_accounts_limit_with_their_parents():
    for name in ("a", "top"):
        one = model({"a100": 8}, accounts={"a": "top", "top": "root"})
        parent = "top" if name == "a" else "root"
        one.set_account(name, AccountLimits(parent, grp_tres={"billing": 1000}))
        one.submit(job(1))
        one.submit(job(1))
        after(one, 0)
        assert states(one)["2"] == ("PENDING", "AssocGrpBilling")


def test_what_the_qos_limits_is_not_limited_by_the_account():
    one = model({"a100": 8}, accounts={"a": "root"})
    one.set_account("a", AccountLimits(grp_tres={"billing": 1000, "gres/gpu:a100": 3}))
    one.set_qos("own", QosLimits(grp_tres={"billing": 9000}))
    one.submit(job(3))
    one.submit(job(1))
    after(one, 0)
    assert states(one) == {"1": ("RUNNING", "None"), "2": ("PENDING", "AssocGrpGRES")}


def test_an_account_has_its_own_part_of_a_qos():
    one = model({"a100": 8})
    one.set_qos("own", QosLimits(max_tres_per_account={"billing": 1000}))
    for account in ("a", "a", "b"):
        one.submit(job(account=account))
    after(one, 0)
    assert [state for state, _ in states(one).values()] == ["RUNNING", "PENDING", "RUNNING"]


def test_minutes_that_are_left_go_down_by_whole_periods():
    """One job of 60 minutes may run, and another of 5 once the first has run for 5."""
    one = model({"a100": 8})
    one.set_qos("own", QosLimits(grp_run_mins={"billing": 1000 * 60}))
    one.submit(job(limit_s=3600))
    one.submit(job(limit_s=300))
    after(one, 399)  # Periods end 100 s after the beginning, and each 300 s later.
    assert states(one)["2"] == ("PENDING", "QOSGrpBillingRunMinutes")
    after(one, 1)
    assert states(one)["2"] == ("RUNNING", "None")


def test_a_job_without_a_limit_takes_more_minutes_than_any_budget_has():
    one = model({"a100": 8})
    one.set_qos("own", QosLimits(grp_run_mins={"billing": 10**9}))
    one.submit(job(limit_s=None))
    after(one, 0)
    assert states(one) == {"1": ("PENDING", "QOSGrpBillingRunMinutes")}


def test_jobs_of_a_removed_qos_wait_until_they_get_another():
    one = model({"a100": 8})
    one.set_qos("own", QosLimits())
    one.remove_qos("own")
    one.submit(job())
    after(one, 0)
    assert states(one) == {"1": ("PENDING", "InvalidQOS")}
    one.set_qos("own", QosLimits())
    after(one, 0)
    assert states(one) == {"1": ("RUNNING", "None")}


def test_a_limit_counts_no_job_that_completes():
    one = model({"a100": 8})
    one.set_qos("own", QosLimits(grp_tres={"billing": 1000}))
    one.submit(job(run_s=10))
    one.submit(job())
    after(one, 10)
    assert states(one)["2"] == ("RUNNING", "None")


def test_an_account_that_moves_is_limited_by_its_new_parents():
    one = model({"a100": 8}, accounts={"a": "root", "small": "root"})
    one.set_account("small", AccountLimits(grp_tres={"billing": 1000}))
    one.submit(job(2, run_s=10))
    after(one, 20)
    one.set_account("a", AccountLimits("small"))
    one.submit(job(2))
    after(one, 0)
    assert states(one)["2"] == ("PENDING", "AssocGrpBilling")
