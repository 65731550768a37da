"""Tests what is said to a caller who names a key that it does not have."""

from slicewise.cluster.rpc.key_messages import KeyView
from slicewise.slurm_plugin.api.keys import unknown_key

CI = KeyView(key_id="a" * 12, tenant="vision", name="ci", created_by="alice", created_s=1.0)
OLD = CI.model_copy(update={"key_id": "b" * 12, "name": "old", "revoked_s": 2.0})


def test_a_keys_name_is_answered_by_its_id() -> None:
    error = unknown_key("ci", (CI, OLD))
    assert error.refusal.code == "SW-NAME-UNKNOWN"
    assert error.refusal.hint == f"That is a name; give its id: {'a' * 12} of vision."


def test_of_other_keys_nothing_is_said() -> None:
    for typed in ("old", "nothing"):
        assert unknown_key(typed, (CI, OLD)).refusal.hint == "Yours: slicewise key list"
