"""Tests which daemon acts: never two of a pair, and one alone though PostgreSQL is away."""

from dataclasses import dataclass, field

import pytest
from waiting import until

from cluster.language.errors import UnreachableError
from cluster.runtime import leadership
from slurm_plugin.daemon.leadership import Leadership

DOWN = UnreachableError("SW-DATABASE-DOWN", "down")


@dataclass
class Postgres:
    """Gives one lock to one session at a time; ``now_s`` is everybody's clock."""

    now_s: float = 0.0
    session: object = None
    holder: str = ""

    def free(self) -> None:
        """A restart, pg_terminate_backend, or an unanswered keepalive."""
        self.session, self.holder = None, ""


@dataclass
class Lock:
    """A daemon's side of it, as ``LeaderLock``."""

    server: Postgres
    host: str
    reached: bool = True
    session: object = field(default_factory=object)
    has: bool = False

    def hold(self) -> bool:
        if not self.reached or (self.has and self.server.session is not self.session):
            self.session, self.has = object(), False
            raise DOWN
        if self.server.session is None:
            self.server.session, self.server.holder = self.session, self.host
        self.has = self.server.session is self.session
        return self.has

    def holder(self) -> str:
        return self.server.holder


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
