"""Tests how limits on billing are read of what slurmctld holds."""

from slicewise.cluster.language.slurm.billing_limits import BillingLimit, parse_billing_limits

SHOWN = """\
Current Association Manager state

Association Records

ClusterName=hpc Account=physics UserName= Partition= Priority=0 ID=5
    SharesRaw/Norm/Level/Factor=1/0.25/4/0.00
    GrpJobs=N(0) GrpJobsAccrue=N(0)
    GrpTRES=cpu=N(0),mem=N(0),billing=64(14),gres/gpu=N(0)
    GrpTRESMins=cpu=N(57),mem=N(35),billing=500000(1234),gres/gpu=N(0)
    GrpTRESRunMins=cpu=N(0),billing=7(0)
    MaxTRESPJ=billing=9
ClusterName=hpc Account=physics UserName=ann(61107) Partition=gpu Priority=0 ID=8
    GrpTRES=cpu=N(0),billing=N(2)
    GrpTRESMins=billing=60(60)
ClusterName=hpc Account=a b UserName= Partition= Priority=0 ID=9
    GrpTRES=billing=1(0)

QOS Records

QOS=long(5)
    UsageRaw=0.000000
    GrpTRES=cpu=N(0),billing=N(0)
    GrpTRESMins=cpu=N(14),billing=100(0),gres/gpu=N(0)
    Account Limits
      physics
        MaxTRESPA=cpu=N(0),billing=3(0)
"""


def test_limits_that_are_set_are_read_with_what_is_used() -> None:
    assert parse_billing_limits(SHOWN) == (
        BillingLimit("GrpTRES", 64, 14, "physics", "", "", "hpc"),
        BillingLimit("GrpTRESMins", 500_000, 1234, "physics", "", "", "hpc"),
        BillingLimit("GrpTRESMins", 60, 60, "physics", "ann", "gpu", "hpc"),
        BillingLimit("GrpTRESMins", 100, 0, qos="long"),
    )
    assert parse_billing_limits("") == ()
