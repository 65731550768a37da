"""The launcher's turns for one service, by its own decisions: ``turn/plan.py``."""

from collections.abc import Iterable

from slicewise.cluster.rpc.messages import DesiredSlotsAnswer, ServiceView
from slicewise.launcher.rules.gateway.types import load_of
from slicewise.launcher.rules.turn.resting_services import Rest, RestSight, rest
from slicewise.launcher.rules.turn.service import ServiceInput, ServicePlan, decide_service
from slicewise.launcher.rules.turn.state import DesiredSlots, ServiceState, after_answer
from slicewise.simulation.rules.services.gateway_place import COUNTER, ServiceGateway
from slicewise.simulation.rules.services.service import SimulatedService


class ServiceLauncher:
    """What the launcher remembers of one service, and its turns.

    A service at rest is left alone, as the launcher leaves it alone; the turns that are not made
    meanwhile are counted as looks, so that it learns from them what it would have learnt.

    Attributes:
        state: what is remembered.
        rests: the rest that goes on; None while something moves.
    """

    def __init__(self, service: SimulatedService, every_s: float) -> None:
        self.state = ServiceState()
        self.rests: Rest | None = None
        self._service, self._every_s = service, every_s

    def decide(
        self, view: ServiceView, gateway: ServiceGateway, now_s: float
    ) -> ServicePlan | None:
        """Decide one turn; None if the service is still at rest, so that nothing is to be done."""
        backend, lines = gateway.backend(), len(view.slots)
        sight = RestSight.of((view,), (backend, COUNTER), lines, {})
        if self.rests is not None:
            before = with_looks(self.rests, now_s, self._every_s)
            if before.lasts(self.state, sight, now_s):
                self.rests = before.later(now_s)
                return None
            self.state, self.rests = before.ended(self.state), None
        look = ServiceInput(
            key=self._service.key,
            spec=self._service.spec,
            views=(view,),
            backend=backend,
            load=load_of(backend, COUNTER),
            most=lines,
            answers=gateway.answers(view.array_job_id),
            free={},
        )
        self.state, plan = decide_service(look, self.state, now_s)
        self.rests = rest(self.state, plan, sight, now_s)
        return plan

    def hear(self, array_job_id: int, desired: DesiredSlots, answer: DesiredSlotsAnswer) -> None:
        """Remember what the daemon answered to desired slots."""
        self.state = after_answer(self.state, array_job_id, desired, answer)

    def due_s(self, now_s: float, next_request_s: float) -> float:
        """When the next turn is due: at rest with the next request, or once it is over."""
        rests = () if self.rests is None else (self.rests,)
        return next_turn_s(rests, now_s, next_request_s, self._every_s)


def with_looks(before: Rest, now_s: float, every_s: float) -> Rest:
    """Count the looks before this one that would have been made since the last turn."""
    looks = max(0, int((now_s - before.at_s) / every_s) - 1)
    return before._replace(at_s=before.at_s + looks * every_s, looks=before.looks + looks)


def next_turn_s(
    rests: Iterable[Rest], now_s: float, next_request_s: float, every_s: float
) -> float:
    """When the next turn is due: at rest with the next request, or once a rest is over."""
    until_s = min((rest.until_s for rest in rests), default=None)
    return now_s + every_s if until_s is None else max(now_s, min(next_request_s, until_s))
