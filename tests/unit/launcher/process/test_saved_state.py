"""Tests that the launcher's state outlives it, and that its database can't delay it."""

import json
import logging
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from slicewise.cluster.language.errors import UnreachableError
from slicewise.launcher.process import saved_state
from slicewise.launcher.process.saved_state import SavedState, saved_curves
from slicewise.launcher.process.store import Saved
from slicewise.launcher.rules.autoscale.crests import Crest
from slicewise.launcher.rules.autoscale.curve import Curve
from slicewise.launcher.rules.autoscale.policy import LastCounters, Memory
from slicewise.launcher.rules.autoscale.start_delay import Delays, learn_starts
from slicewise.launcher.rules.autoscale.tokens import TokensDone
from slicewise.launcher.rules.autoscale.types import ReplicaStart
from slicewise.launcher.rules.engines.engine import TokenCounts
from slicewise.launcher.rules.gateway.types import Endpoint
from slicewise.launcher.rules.turn.backoff import Backoff
from slicewise.launcher.rules.turn.curves import KeptCurve
from slicewise.launcher.rules.turn.endpoints import ReplicaRun, Verified
from slicewise.launcher.rules.turn.state import (
    DesiredSlots,
    GenerationState,
    ServiceState,
    after_restart,
    with_saved,
)

pytestmark = pytest.mark.usefixtures("clock")

RUN = ReplicaRun(900, 1000, Endpoint("10.0.0.1", 8000, 8001, "CCCC"))
BERT = ServiceState(
    Memory(),
    {
        814: GenerationState(
            backoff=Backoff().failed(5.0),
            verified={3: Verified(RUN, 7.0)},
            draining_since_s={1: 2.0},
            alive=frozenset({1, 3}),
            desired=DesiredSlots(frozenset({1, 3}), 9.5, "why", 0.5),
        )
    },
)
SEEN = LastCounters(9.0, 4, 3, 1)
DOWN = UnreachableError("SW-DATABASE-DOWN", "down")


class Rows:
    """A store, and what was written to it."""

    def __init__(self, **rows: object) -> None:
        self.rows: dict[str, object] = {key.replace("__", "/"): row for key, row in rows.items()}
        self.writes: list[tuple[set[str], set[str]]] = []
        self.is_down = False

    def load(self) -> Saved:
        if self.is_down:
            raise DOWN
        return dict(self.rows)

    def save(self, changed: Saved, ended: Collection[str]) -> None:
        if self.is_down:
            raise DOWN
        self.writes.append((set(changed), set(ended)))
        self.rows.update(json.loads(json.dumps(changed)))
        for key in ended:
            del self.rows[key]


async def loaded(rows: Rows) -> SavedState:
    saved = SavedState(rows)
    await saved.load()
    return saved


async def test_the_next_launcher_knows_what_the_last_one_knew() -> None:
    rows = Rows()
    await (await loaded(rows)).save({"vision/bert": BERT})
    assert await SavedState(rows).load() == {"vision/bert": after_restart(BERT)}


async def test_what_was_saved_by_a_clock_that_was_ahead_is_as_old_as_it_can_be() -> None:
    """Until that clock's time had come, the daemon would be asked for nothing again."""
    rows, ahead_s = Rows(), time.time() + 5000
    seen, desired = replace(SEEN, at_s=ahead_s), DesiredSlots(frozenset({1}), ahead_s - 60)
    state = ServiceState(Memory(seen=seen), {814: GenerationState(desired=desired)})
    await (await loaded(rows)).save({"vision/bert": state, "vision/old": BERT})
    found = await SavedState(rows).load()
    (known,) = found["vision/bert"].generations.values()
    assert known.desired is not None
    assert 0 <= time.time() - 60 - known.desired.at_s < 10
    assert found["vision/old"] == after_restart(BERT)


async def test_only_what_has_changed_is_written_and_what_has_ended_is_deleted() -> None:
    rows = Rows()
    saved = await loaded(rows)
    await saved.save({"a/b": BERT, "a/c": BERT})
    await saved.save({"a/b": BERT, "a/c": BERT})
    await saved.save({"a/b": replace(BERT, memory=None)})
    assert rows.writes == [({"a/b", "a/c"}, set()), ({"a/b"}, {"a/c"})]


async def test_what_another_version_has_written_is_learnt_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = Rows(a__b={"generations": "of 2030"})
    saved = SavedState(rows)
    assert await saved.load() == {}
    assert ["state_unreadable service=a/b" in one for one in caplog.messages] == [True]
    await saved.save({"a/b": BERT})
    assert await SavedState(rows).load() == {"a/b": after_restart(BERT)}


@pytest.mark.parametrize(
    ("path", "items"),
    [
        (("arrivals", "counts"), 3),
        (("delays", "loads", "node", "load"), 43),
        (("idle", "pauses"), 17),
        (("forecasts", "errors"), 2),
        (("forecasts", "errors", 0, "busy", "after"), 20),
        (("tokens", "firsts"), 34),
        (("tokens", "seen", "firsts"), 36),
        (("crests", 0, "pauses"), 19),
        (("crests",), 26),
    ],
)
async def test_bins_of_another_version_are_dropped_and_not_misread(
    path: tuple[str | int, ...], items: int
) -> None:
    """The first bin of 17 is not the first of 18; what else is known of the service stays."""
    firsts = (0.0,) * 35
    tokens = TokensDone(TokenCounts(1.0, 1.0, 1.0, 1.0, firsts), firsts=firsts)
    rows = Rows()
    delays = learn_starts(Delays(), (ReplicaStart(1.0, 2.0, "node"),))
    memory = Memory(seen=SEEN, tokens=tokens, delays=delays, crests=(Crest(1.0, 1.0),))
    await (await loaded(rows)).save({"a/b": replace(BERT, memory=memory)})
    found = await SavedState(rows).load()
    assert found["a/b"].memory == memory
    *parents, last = path
    saved: Any = rows.rows["a/b"]
    inner = saved["memory"]
    for part in parents:
        inner = inner[part]
    inner[last] = (inner[last] * items)[:items]
    found = await SavedState(rows).load()
    assert found["a/b"] == replace(after_restart(BERT), memory=None)


async def test_what_could_not_be_read_is_not_replaced(caplog: pytest.LogCaptureFixture) -> None:
    rows = Rows()
    await (await loaded(rows)).save({"a/b": BERT})
    rows.is_down = True
    saved = await loaded(rows)
    rows.is_down = False
    await saved.save({"a/b": ServiceState(), "a/c": BERT})
    assert (list(rows.rows), saved.is_loaded) == (["a/b"], False)
    assert [one.split()[0] for one in caplog.messages] == ["state_not_loaded"]
    assert await saved.load() == {"a/b": after_restart(BERT)}
    await saved.save({"a/b": BERT, "a/c": BERT})
    assert set(rows.rows) == {"a/b", "a/c"}


async def test_what_can_not_be_saved_is_said_once_and_saved_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = Rows()
    saved = await loaded(rows)
    rows.is_down = True
    for _ in range(3):
        await saved.save({"a/b": BERT})
    assert [one.split()[0] for one in caplog.messages] == ["state_not_saved"]
    rows.is_down = False
    await saved.save({"a/b": BERT})
    assert "a/b" in rows.rows


def test_what_is_read_late_is_joined_with_what_goes_on() -> None:
    now = ServiceState(Memory(seen=SEEN), {814: GenerationState(alive=frozenset({7}))})
    older = replace(BERT, generations={**BERT.generations, 700: GenerationState()})
    joined = with_saved({"a/b": now, "a/new": now}, {"a/b": older, "a/away": BERT})
    assert joined["a/b"].memory == older.memory
    assert joined["a/b"].generations == {**now.generations, 700: GenerationState()}
    assert (joined["a/new"], joined["a/away"]) == (now, BERT)


async def test_a_state_that_grows_without_end_is_not_saved(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rows = Rows()
    monkeypatch.setattr(saved_state, "STATE_BYTES", 20)
    await (await loaded(rows)).save({"a/b": BERT})
    assert rows.rows == {}
    assert caplog.messages[0].startswith("state_too_large service=a/b bytes=")


async def test_a_launcher_without_a_database_forgets() -> None:
    saved = SavedState(None)
    await saved.save({"a/b": BERT})
    assert await saved.load() == {}


KEPT = KeptCurve(Curve(((1.0, 1.5), (8.0, 2.25)), (), 200.0), "a/chat", 9.0)


async def test_curves_outlive_the_launcher_and_a_bad_one_costs_only_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = Rows()
    saved = saved_curves(rows)
    await saved.load()
    await saved.save({"a/1": KEPT, "a/2": KEPT})
    rows.rows["a/1"] = {"curve": {"service": "of 2030"}}
    again = saved_curves(rows)
    assert await again.load() == {"a/2": KEPT}
    assert ["state_unreadable service=a/1" in one for one in caplog.messages] == [True]
    await again.save({"a/2": KEPT})
    assert list(rows.rows) == ["a/2"]
