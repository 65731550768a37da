"""What keeps a limit of a QOS from growing."""

import pytest

from cluster.units import Millislices
from slurm_plugin.decide.ceilings import QosUse
from slurm_plugin.decide.growth import overtaken, unfunded
from slurm_plugin.decide.limits import BILLING, Difference, Setting, Wanted
from slurm_plugin.decide.policy import LimitKey, Loan, Quota, Tenant

POLICY = {
    name: Tenant(name, parent, Quota(Millislices(1000)))
    for name, parent in (("a", ""), ("b", ""), ("c", ""), ("sub", "a"))
}
EACH = {name: f"slicewise_{name}" for name in ("a", "a_borrowed", "b", "b_borrowed", "c", "sub")}


def limit(qos: str, now: int, wanted: int) -> Difference:
    return Difference(LimitKey("qos", qos, BILLING), str(now), str(wanted), "")


@pytest.mark.parametrize(
    ("planned", "now", "waits"),
    [
        ({}, {}, set()),
        ({}, {"slicewise_a": 1000}, set()),
        ({}, {"slicewise_a": 1500}, {"slicewise_a_borrowed"}),
        # What it held before the limits were planned is no surprise.
        ({"slicewise_a": 1500}, {"slicewise_a": 1500}, set()),
        ({}, {"slicewise_a_borrowed": 1}, {"slicewise_a"}),
    ],
)
def test_what_the_other_qos_took_meanwhile(
    planned: dict[str, int], now: dict[str, int], waits: set[str]
):
    wanted = Wanted({LimitKey("qos", "slicewise_a", BILLING): Setting("1000", "")}, {})
    assert overtaken(POLICY, wanted, QosUse(planned), QosUse(now)) == waits


@pytest.mark.parametrize(
    ("stuck", "free", "waits"),
    [
        ((), 0, set()),
        (("a",), None, {"a_borrowed", "b_borrowed", "sub"}),
        (("a_borrowed",), None, {"a"}),
        # What is free of the cluster is for the others, as far as it goes.
        (("a",), 1999, {"a_borrowed", "b_borrowed", "sub", "c"}),
        (("a",), 2000, {"a_borrowed", "b_borrowed", "sub"}),
    ],
)
def test_who_waits_for_what_slurm_refuses_to_shrink(
    stuck: tuple[str, ...], free: int | None, waits: set[str]
):
    kept = [limit(EACH[name], 1000, 0) for name in stuck]
    grow = [limit(qos, 0, 1000) for name, qos in EACH.items() if name not in stuck]
    loans = (Loan("a", "b", Millislices(1000)),)
    found = unfunded(kept, grow, POLICY, loans, free)
    assert found & set(EACH.values()) == {EACH[name] for name in waits}
