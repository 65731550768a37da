"""Tests what a snapshot holds and what it must not, other names, and its bytes."""

import io
import json
import zipfile
from dataclasses import replace

import pytest
from builders.snapshot_world import PRIVATE, SETTINGS, snapshot
from pydantic import ValidationError

from slicewise.cluster.language.jobs import JobTag, PastRun
from slicewise.slurm_plugin.rules.snapshot.archive import write_archive
from slicewise.slurm_plugin.rules.snapshot.contents import (
    HISTORY,
    STATE,
    SnapshotService,
    from_values,
    scheduling_values,
    service_values,
    to_json,
)
from slicewise.slurm_plugin.rules.snapshot.pseudonyms import (
    Pseudonyms,
    other_qos,
    run_under_other_names,
    under_other_names,
)

ALL = Pseudonyms(b"k" * 32, accounts=True)
NAMES = Pseudonyms(b"k" * 32)


def archived(history: list[str] | None = None) -> bytes:
    file = io.BytesIO()
    write_archive(file, snapshot(), history)
    return file.getvalue()


def test_what_was_written_is_read_the_same() -> None:
    assert from_values(json.loads(to_json(snapshot()))) == snapshot()
    # Mappings are no part of what dataclasses compare by hash, but of equality.
    assert from_values(json.loads(to_json(snapshot()))).nodes[0].gpus == {"1g.10gb": 7, "a100": 1}


def test_neither_secrets_nor_addresses_nor_paths_nor_words_of_users() -> None:
    text = to_json(snapshot())
    assert PRIVATE not in text
    assert PRIVATE.replace("e", "0") not in text
    assert "/" not in text.replace("gres/", "").replace("priority/", "").replace("3/2", "")


def test_tres_that_only_one_site_has_are_left_out() -> None:
    """A licence may be named after the host of its server, or after who owns it."""
    site = snapshot()
    assert "matlab" not in to_json(site).lower()
    assert site.partitions[0].billing_weights == {"gres/gpu:1g.10gb": 1500.0}
    assert site.associations[2].grp_tres == {"billing": 9}
    assert site.associations[2].grp_tres_run_mins == site.associations[2].grp_tres_mins == {}
    assert site.qos[1].grp_tres == {"billing": 0}
    assert site.qos[1].max_tres_per_account == site.qos[1].grp_tres_run_mins == {}
    assert site.jobs[0].tres == {"gres/gpu:1g.10gb": "1"}
    config = {
        "AccountingStorageTRES": "cpu,fs/disk,license/matlab@host,gres/gpu",
        "PriorityWeightTRES": "CPU=5,License/matlab=9",
        "SelectTypeParameters": "(null)",
        "AuthInfo": "socket=/run/secret/munge.socket,cred_expire=60,use_client_ids",
    }
    assert scheduling_values(config) == {
        "AccountingStorageTRES": "cpu,fs/disk,gres/gpu",
        "PriorityWeightTRES": "CPU=5",
        "SelectTypeParameters": "(null)",
        "AuthInfo": "cred_expire=60",
    }


def test_the_settings_that_decide_are_those_of_the_site() -> None:
    settings = snapshot().site_settings
    assert settings.costs == SETTINGS.costs
    assert settings.whole_boards == SETTINGS.whole_boards
    assert settings.priority == SETTINGS.priority


def test_ended_jobs_are_not_of_the_queue() -> None:
    assert [one.name for one in snapshot().jobs] == ["train", "bert", "other"]


def test_the_same_contents_are_the_same_bytes() -> None:
    assert archived(["a", "b"]) == archived(["a", "b"])
    with zipfile.ZipFile(io.BytesIO(archived(["a", "b"]))) as archive:
        assert archive.namelist() == [STATE, HISTORY]
        assert archive.read(HISTORY) == b"a\nb\n"
    with zipfile.ZipFile(io.BytesIO(archived())) as archive:
        assert archive.namelist() == [STATE]


def test_users_jobs_and_services_have_other_names() -> None:
    text = to_json(under_other_names(snapshot(), NAMES))
    assert not [name for name in ("alice", "bob", "train", "bert", "61001") if name in text]
    assert "vision" in text
    other = under_other_names(snapshot(), NAMES)
    tags = [JobTag.find(one.admin_comment) for one in other.jobs]
    assert tags[1] is not None
    assert tags[1].service == other.services[0].name
    assert other.jobs[0].user == other.jobs[1].user == other.ledger.reservations[0].user
    assert other.jobs[0].user != other.jobs[2].user
    assert other.pseudonyms == "names"


def test_accounts_and_what_is_named_after_them_have_other_names_too() -> None:
    other = under_other_names(snapshot(), ALL)
    text = to_json(other)
    assert not [name for name in ("alice", "vision", "nlp") if name in text]
    vision, nlp = ALL.account("vision"), ALL.account("nlp")
    assert other.ledger.tenants[nlp].parent == vision
    assert other.ledger.tenants[nlp].name == nlp
    accounts = {one.account: one for one in other.associations if not one.user}
    assert accounts.keys() == {"root", vision, nlp}
    qos = {one.name: one for one in other.qos}
    assert qos[f"slicewise_{vision}"].preempt == {f"slicewise_{nlp}_borrowed"}
    assert accounts[vision].default_qos == f"slicewise_{vision}"
    assert other.partitions[1].allow_qos == {f"slicewise_{nlp}", "long"}
    assert other.site_settings.priority.high_class_for == (vision,)
    assert [one.tenant for one in other.ledger.windows] == [nlp, ""]
    assert other.ledger.loans[0].borrower == vision
    assert other.ledger.recalls[0].lender == nlp
    assert other.ledger.balances[vision].tenant == vision
    assert other.services[0].tenant == vision
    assert from_values(json.loads(text)) == other


def test_nothing_stands_in_the_order_of_the_real_names() -> None:
    """Who has a list of the users could else put the two beside each other."""
    first = snapshot()
    users = tuple(replace(first.associations[3], user=name) for name in "abcdefgh")
    qos = tuple(replace(first.qos[0], name=f"slicewise_{name}") for name in "abcdefgh")
    high = [f"t{n}" for n in range(8)]
    settings = {**first.settings, "priority": {**first.settings["priority"]}}
    settings["priority"]["high_class_for"] = high
    site = replace(first, associations=users, qos=qos, settings=settings)
    other = under_other_names(site, ALL)
    found = [one.user for one in other.associations]
    assert found == sorted(map(ALL.user, "abcdefgh"))
    assert found != list(map(ALL.user, "abcdefgh"))
    assert [one.name for one in other.qos] == sorted(one.name for one in other.qos)
    assert list(other.site_settings.priority.high_class_for) == sorted(map(ALL.account, high))


def test_the_qos_of_a_tenant_that_is_gone_has_another_name_too() -> None:
    first = snapshot()
    gone = replace(first.qos[0], name="slicewise_oldlab", preempt=frozenset())
    kept = replace(gone, name="slicewise_gate", preempt=frozenset({"slicewise_nlplab_borrowed"}))
    part = replace(first.partitions[0], qos="slicewise_oldlab", deny_qos=frozenset({"slicewise_x"}))
    site = replace(first, qos=(*first.qos, gone, kept), partitions=(part,))
    other = under_other_names(site, ALL)
    assert not [name for name in ("oldlab", "nlplab") if name in to_json(other)]
    assert f"slicewise_{ALL.account('oldlab')}" in {one.name for one in other.qos}
    assert "slicewise_gate" in {one.name for one in other.qos}
    assert other.partitions[0].qos == f"slicewise_{ALL.account('oldlab')}"


def test_a_run_of_the_past_has_the_names_of_the_snapshot() -> None:
    run = PastRun(
        *(7, "7", "alice", "vision", "slicewise_vision", "gpu", 1, 2, 3, 4, "COMPLETED", 5, 6, 1),
        requested={},
        allotted={},
    )
    other = run_under_other_names(run, ALL, other_qos(["slicewise_vision"], ALL))
    assert (other.user, other.account) == (ALL.user("alice"), ALL.account("vision"))
    assert other.qos == f"slicewise_{ALL.account('vision')}"
    assert (
        run_under_other_names(run, NAMES, other_qos(["slicewise_vision"], NAMES)).account
        == "vision"
    )


def test_another_key_gives_other_names() -> None:
    assert Pseudonyms(b"l" * 32).user("alice") != NAMES.user("alice")
    assert NAMES.user("alice") != NAMES.job("alice")
    assert len({NAMES.uid(uid) for uid in range(1000, 1100)}) == 100
    assert not any(NAMES.uid(uid) == uid for uid in range(1000, 1100))
    assert (NAMES.user(""), ALL.account("root"), NAMES.uid(-1)) == ("", "root", -1)


@pytest.mark.parametrize("key", ["nodes", "ledger", "settings", "format"])
def test_what_lacks_a_part_is_none(key: str) -> None:
    values = json.loads(to_json(snapshot()))
    del values[key]
    with pytest.raises(ValidationError):
        from_values(values)


def test_a_part_with_a_default_may_be_missing() -> None:
    """So an archive of an earlier version stays readable when a key is added."""
    values = json.loads(to_json(snapshot()))
    del values["services"], values["partitions"][0]["max_time_s"]
    found = from_values(values)
    assert found.services == ()
    assert found == replace(
        snapshot(),
        services=(),
        partitions=(replace(snapshot().partitions[0], max_time_s=None), snapshot().partitions[1]),
    )


def test_of_a_service_its_aims_are_kept_and_no_path() -> None:
    aims = {"max_queue_s": "5", "p95_ms": "900", "ttft_ms": "300", "tpot_ms": "20"}
    aims |= {"pool": "small", "model_mib": "900"}
    assert service_values({**aims, "model_repository": "/secret", "model": "x"}) == aims


def test_services_of_a_pool_have_one_of_another_name() -> None:
    values = {"pool": "secret", "model_mib": "900"}
    of = replace(
        snapshot(),
        services=tuple(
            SnapshotService(nth, "vision", name, values) for nth, name in enumerate("ab")
        ),
    )
    other = under_other_names(of, NAMES)
    assert "secret" not in to_json(other)
    assert len({service.values["pool"] for service in other.services}) == 1
    assert other.services[0].values["model_mib"] == "900"
