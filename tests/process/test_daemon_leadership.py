"""Tests which daemon acts: never two of a pair, and one alone though PostgreSQL is away."""

import pytest
from stand_ins.leader_locks import Lock, Postgres
from waiting import until

from slicewise.cluster.runtime import leadership
from slicewise.slurm_plugin.daemon.leadership import Leadership


async def test_a_loop_that_is_held_up_does_not_end_the_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its time passes by the turns that are taken meanwhile: without them it stands still."""
    server, a_turn_s = Postgres(), leadership._TURN_S
    monkeypatch.setattr(leadership, "_TURN_S", 0.01)

    class Passing(Lock):
        def hold(self) -> bool:
            server.now_s += a_turn_s
            return super().hold()

    leader = Leadership(Passing(server, "ctl1"), pair=True, now_s=lambda: server.now_s)
    await leader.start()
    with leader.kept():
        for held_up_s in (2.4, 4.8):
            # It holds up the loop: that is what it must live through.
            until(lambda: server.now_s >= held_up_s)  # noqa: B023
            assert leader.leads()
