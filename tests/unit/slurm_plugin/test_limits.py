from collections.abc import Iterable, Mapping

import pytest

from cluster.slurm.interface import Association, Qos
from cluster.units import Millislices
from slurm_plugin.decide.limits import Change, limit_changes, qos_name
from slurm_plugin.decide.model import Quota


def account(name: str, parent: str = "root", **changes: object) -> Association:
    values = {"qos": frozenset({"normal"}), "default_qos": "", "grp_tres": {}} | changes
    return Association("c", name, "", parent, **values)  # type: ignore[arg-type]


def user(name: str, of: str, **changes: object) -> Association:
    values = {"qos": frozenset({"normal"}), "default_qos": "", "grp_tres": {}} | changes
    return Association("c", of, name, "", **values)  # type: ignore[arg-type]


def done(name: str, nominal: int, parent: str = "root") -> Association:
    """An account as it is after the changes."""
    qos = frozenset({"normal", qos_name(name)})
    limit = {"billing": nominal}
    return account(name, parent, qos=qos, default_qos=qos_name(name), grp_tres=limit)


def tenant_qos(name: str) -> Qos:
    return Qos(qos_name(name), {}, frozenset())


def changes(
    quotas: Mapping[str, int], rows: Iterable[Association], qos: Iterable[Qos] = ()
) -> list[str]:
    found = {name: Quota(name, Millislices(nominal)) for name, nominal in quotas.items()}
    return [" ".join(change) for change in limit_changes("c", found, rows, qos)]


ROOT = account("root", "")


def test_a_new_tenant():
    assert changes({"vision": 6000}, [ROOT, account("vision"), user("alice", "vision")]) == [
        "modify account where name=vision cluster=c set grptres=billing=6000",
        "add qos slicewise_vision",
        "modify account where name=vision cluster=c set qos+=slicewise_vision",
        "modify account where name=vision cluster=c set defaultqos=slicewise_vision",
    ]


def test_nothing_to_do_is_nothing():
    assert changes({"vision": 6000}, [ROOT, done("vision", 6000)], [tenant_qos("vision")]) == []


@pytest.mark.parametrize("nominal", [0, 5999, 6001])
def test_a_changed_quota_changes_the_account_s_limit(nominal: int):
    rows = [ROOT, done("vision", 6000)]
    assert changes({"vision": nominal}, rows, [tenant_qos("vision")]) == [
        f"modify account where name=vision cluster=c set grptres=billing={nominal}",
    ]


def test_shrinking_comes_before_growing():
    rows = [ROOT, done("a", 1000), done("b", 5000)]
    qos = [tenant_qos("a"), tenant_qos("b")]
    assert changes({"a": 5000, "b": 1000}, rows, qos) == [
        "modify account where name=b cluster=c set grptres=billing=1000",
        "modify account where name=a cluster=c set grptres=billing=5000",
    ]


def test_accounts_without_a_quota_may_run_nothing_billed():
    assert changes({}, [ROOT, account("a"), account("b"), user("x", "a")]) == [
        "modify account where name=a,b cluster=c set grptres=billing=0"
    ]


def test_an_account_above_tenants_is_limited_to_their_sum():
    rows = [ROOT, account("lab"), done("a", 1000, "lab"), done("b", 2000, "lab")]
    qos = [tenant_qos("a"), tenant_qos("b")]
    assert changes({"a": 1000, "b": 2000}, rows, qos) == [
        "modify account where name=lab cluster=c set grptres=billing=3000"
    ]


def test_a_tenant_above_tenants_is_limited_to_its_own_quota():
    rows = [ROOT, done("lab", 1500), done("a", 1000, "lab")]
    qos = [tenant_qos("lab"), tenant_qos("a")]
    assert changes({"lab": 1500, "a": 1000}, rows, qos) == []


def test_the_root_account_is_never_limited():
    assert changes({"root": 1000}, [ROOT], []) == []


def test_a_quota_without_an_account_waits():
    assert changes({"ghost": 1000}, [ROOT], []) == []


def test_a_qos_whose_tenant_is_gone_allows_nothing():
    assert changes({}, [ROOT], [tenant_qos("ghost"), Qos("long", {}, frozenset())]) == [
        "modify qos where name=slicewise_ghost set grptres=billing=0"
    ]


def test_a_limit_on_a_tenant_s_qos_would_hide_the_account_s():
    limited = Qos(qos_name("vision"), {"billing": 6000}, frozenset())
    rows = [ROOT, done("vision", 6000)]
    assert changes({"vision": 5000}, rows, [limited]) == [
        "modify account where name=vision cluster=c set grptres=billing=5000",
        "modify qos where name=slicewise_vision set grptres=billing=-1",
    ]


def test_another_clusters_accounts_are_left_alone():
    other = Association("d", "vision", "", "root", frozenset(), "", {})
    assert changes({"vision": 6000}, [ROOT, other]) == []


def test_other_limits_are_left_alone():
    row = done("vision", 6000)
    limits = {"billing": 6000, "cpu": 3}
    row = account("vision", qos=row.qos, default_qos=row.default_qos, grp_tres=limits)
    assert changes({"vision": 6000}, [ROOT, row], [tenant_qos("vision")]) == []


def test_a_user_with_a_qos_list_of_his_own_gets_it_before_it_becomes_the_default():
    rows = [
        ROOT,
        account("vision", grp_tres={"billing": 6000}),
        user("alice", "vision", qos=frozenset({"long"})),
        user("bob", "vision"),
    ]
    assert changes({"vision": 6000}, rows, [tenant_qos("vision")]) == [
        "modify user where name=alice account=vision cluster=c set qos+=slicewise_vision",
        "modify account where name=vision cluster=c set qos+=slicewise_vision",
        "modify account where name=vision cluster=c set defaultqos=slicewise_vision",
    ]


def test_a_user_whose_own_list_was_like_his_accounts_shows_afterwards():
    rows = [ROOT, done("vision", 6000), user("alice", "vision")]
    assert changes({"vision": 6000}, rows, [tenant_qos("vision")]) == [
        "modify user where name=alice account=vision cluster=c set qos+=slicewise_vision"
    ]


def test_every_word_of_a_change_is_one_argument():
    found = {"vision": Quota("vision", Millislices(1))}
    every: tuple[Change, ...] = limit_changes("c", found, [ROOT, account("vision")], [])
    assert all(" " not in word for change in every for word in change)
