"""Tests that messages between the daemon and its admission worker arrive as they were sent."""

from dataclasses import replace

from builders.snapshots import snapshot
from hypothesis import given
from hypothesis import strategies as st

from slicewise.slurm_plugin.admission_server.pipe import (
    Changes,
    Decisions,
    Entries,
    Frames,
    Taken,
    framed,
)

MAPPINGS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3))


@given(MAPPINGS, MAPPINGS, st.frozensets(st.integers(0, 3)))
def test_changes_make_one_snapshot_the_other_and_hold_nothing_else(
    before: dict[str, int], after: dict[str, int], node_costs: frozenset[int]
) -> None:
    old, new = snapshot(**before), replace(snapshot(**after), node_costs=node_costs)
    first = Changes.between(None, old, 1.0).applied(None)
    changes = Changes.between(first, new, 2.0)
    assert (first, changes.applied(first)) == (old, new)
    different = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    sent = changes.fields.get("quotas", Entries({}, frozenset()))
    assert sent.new.keys() | sent.gone == different
    assert ("node_costs" in changes.fields) == bool(node_costs)


@given(st.integers(1, 300))
def test_messages_are_whole_however_they_are_cut(size: int) -> None:
    messages = [Taken(), Changes({"used": {"vision": 1}}, 2.0), Decisions((), 3)]
    data = b"".join(map(framed, messages))
    frames = Frames()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [message for piece in pieces for message in frames.feed(piece)] == messages
