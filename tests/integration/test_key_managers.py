"""Coordinators of real Slurm accounts manage keys and limits there, beside operators."""

import json
from collections.abc import Iterator

import pytest
from api_keys import forget_keys
from quotas import until_in_force
from waiting import until_is

from slicewise.cluster.language.codes import Code
from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

SEEN_S = 600.0
"""The daemon looks at coordinators once a minute, and when it looks at accounts."""


def slicewise(sandbox: Sandbox, user: str, *words: str) -> str:
    return sandbox.run(user, ("slicewise", *words)).stdout


def refusal(sandbox: Sandbox, user: str, *words: str) -> str:
    ran = sandbox.run(user, ("slicewise", *words), check=False)
    code = ran.stderr.splitlines()[-1]
    assert ran.returncode == Code(code).exit_code
    return code


def keys_seen(sandbox: Sandbox, user: str) -> set[str]:
    return {key["key_id"] for key in json.loads(slicewise(sandbox, user, "key", "list", "--json"))}


@pytest.fixture
def key_id(sandbox: Sandbox) -> Iterator[str]:
    """A key of bob's in nlp; alice is no member of nlp."""
    slicewise(sandbox, "root", "tenant-quota", "set", "nlp", "--nominal", "1")
    until_in_force(sandbox, "nlp")
    words = ("key", "create", "nlp", "--name", "ci", "--yes", "--json")
    yield str(json.loads(slicewise(sandbox, "bob", *words))["key_id"])
    forget_keys(sandbox, "nlp")


def test_a_coordinator_manages_the_account_s_keys_until_it_is_one_no_more(
    sandbox: Sandbox, key_id: str
) -> None:
    alice = sandbox.state.users["alice"].name
    named = ("coordinator", "account=nlp", f"names={alice}")
    assert keys_seen(sandbox, "alice") == set()
    assert refusal(sandbox, "alice", "key", "delete", key_id) == "SW-NAME-UNKNOWN"
    sandbox.run("root", ("sacctmgr", "-i", "add", *named))
    try:
        until_is(lambda: keys_seen(sandbox, "alice"), {key_id}, SEEN_S)
        slicewise(sandbox, "alice", "key", "limit", "nlp", "--concurrent", "3")
        slicewise(sandbox, "alice", "key", "limit", "--key", key_id, "--concurrent", "2")
        slicewise(sandbox, "bob", "key", "limit", "--key", key_id, "--concurrent", "9")
        limits = json.loads(slicewise(sandbox, "root", "key", "limits", "--json"))
        shown = {one["key_id"] or one["tenant"]: one["limits"]["concurrent"] for one in limits}
        assert shown == {"nlp": 3, key_id: 2}
        words = ("key", "create", "nlp", "--name", "mine", "--yes")
        assert refusal(sandbox, "alice", *words) == "SW-TENANT-UNKNOWN"
    finally:
        sandbox.run("root", ("sacctmgr", "-i", "delete", *named))
    until_is(lambda: keys_seen(sandbox, "alice"), set(), SEEN_S)
    assert refusal(sandbox, "alice", "key", "delete", key_id) == "SW-NAME-UNKNOWN"
