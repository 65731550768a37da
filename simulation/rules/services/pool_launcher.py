"""The launcher's turns for services that share replicas, by its own: ``pool_service.py``."""

from collections.abc import Mapping

from slicewise.cluster.rpc.messages import DesiredSlotsAnswer, ServiceView
from slicewise.launcher.rules.gateway.types import Gateway, load_of
from slicewise.launcher.rules.pools.busy import NOTHING_BUSY, Parts, PoolLook, Run, used_ms
from slicewise.launcher.rules.pools.types import ReplicaModels
from slicewise.launcher.rules.turn.neighbours import neighbours
from slicewise.launcher.rules.turn.pool_service import decide_pool
from slicewise.launcher.rules.turn.resting_services import Rest, RestSight, rest
from slicewise.launcher.rules.turn.service import Heard, ServiceInput, ServicePlan
from slicewise.launcher.rules.turn.state import DesiredSlots, ServiceState, after_answer
from slicewise.simulation.rules.services.gateway_place import COUNTER
from slicewise.simulation.rules.services.launcher import next_turn_s, with_looks
from slicewise.simulation.rules.services.pool_gateway import PoolGateway
from slicewise.simulation.rules.services.service import SimulatedService


class PoolLauncher:
    """What the launcher remembers of services that share replicas, and its turns.

    Attributes:
        states: what is remembered, by ``tenant/service``.
        rests: the rest that goes on of all of them; None while something moves.
    """

    def __init__(self, every_s: float) -> None:
        self.states: dict[str, ServiceState] = {}
        self.rests: Mapping[str, Rest] | None = None
        self._every_s = every_s
        self._keys: dict[int, str] = {}
        self._look = NOTHING_BUSY

    def decide(
        self,
        services: Mapping[str, tuple[SimulatedService, ServiceView, PoolGateway]],
        now_s: float,
    ) -> Mapping[str, ServicePlan]:
        """Decide one turn, by ``tenant/service``; nothing if all are still at rest."""
        backends = {key: gateway.backend() for key, (*_, gateway) in services.items()}
        views = {key: (view,) for key, (_, view, _) in services.items()}
        self._keys = {view.array_job_id: key for key, (_, view, _) in services.items()}
        sights = {
            key: RestSight.of((view,), (backends[key], COUNTER), len(view.slots), {})
            for key, (_, view, _) in services.items()
        }
        states = {key: self.states.get(key) or ServiceState() for key in services}
        if self.rests is not None:
            before = {
                key: with_looks(past, now_s, self._every_s) for key, past in self.rests.items()
            }
            if before.keys() == sights.keys() and all(
                before[key].lasts(states[key], sight, now_s) for key, sight in sights.items()
            ):
                self.rests = {key: past.later(now_s) for key, past in before.items()}
                return {}
            states |= {key: past.ended(states[key]) for key, past in before.items()}
            self.rests = None
        at_work = neighbours(
            Gateway({key: key for key in backends}, backends, complete=True), states, views
        )
        models: dict[Run, ReplicaModels] = {}
        for _, view, gateway in services.values():
            models |= gateway.models(view.array_job_id)
        heard = Heard(models=models)
        most = sum(len(view.slots) for (view,) in views.values())
        looks = {
            key: ServiceInput(
                key=key,
                spec=service.spec,
                views=(view,),
                backend=backends[key],
                load=load_of(backends[key], COUNTER),
                most=most,
                answers=gateway.answers(view.array_job_id),
                free={},
                heard=heard,
                beside=at_work.beside.get(key, {}),
                lent=at_work.lent.get(key, frozenset()),
            )
            for key, (service, view, gateway) in services.items()
        }
        decided = decide_pool(looks, states, now_s)
        self.states = {key: state for key, (state, _) in decided.items()}
        plans = {key: plan for key, (_, plan) in decided.items()}
        rests = {key: rest(self.states[key], plans[key], sights[key], now_s) for key in plans}
        begun = {key: begin for key, begin in rests.items() if begin is not None}
        self.rests = begun if len(begun) == len(rests) else None
        return plans

    def used(self, parts: Mapping[Run, Parts], now_s: float) -> Mapping[tuple[int, str], float]:
        """Seconds of replicas since the last look that services used of others, as the launcher
        sees them: by the job array whose slot it is, and ``tenant/service`` of who used it.
        """
        before, self._look = self._look, PoolLook(now_s, parts)
        seconds: dict[tuple[int, str], float] = {}
        for used, used_by_ms in used_ms(before, self._look).items():
            pair = used.run[0], used.service
            seconds[pair] = seconds.get(pair, 0.0) + used_by_ms / 1000
        return seconds

    def hear(self, array_job_id: int, desired: DesiredSlots, answer: DesiredSlotsAnswer) -> None:
        """Remember what the daemon answered to desired slots."""
        key = self._keys[array_job_id]
        self.states[key] = after_answer(self.states[key], array_job_id, desired, answer)

    def due_s(self, now_s: float, next_request_s: float) -> float:
        """When the next turn is due: at rest with the next request, or once one is over."""
        rests = () if self.rests is None else self.rests.values()
        return next_turn_s(rests, now_s, next_request_s, self._every_s)
