"""Lists a tenant's services that speak OpenAI's API, also those that sleep, as its models."""

from collections.abc import Mapping

from cluster.language.service import tenant_of
from launcher.engines.engine import OPENAI_API
from launcher.engines.openai import ListedModel, models_answer, openai_error
from launcher.engines.registry import ENGINES
from launcher.engines.statistics import StatisticsAnswer
from launcher.turn.plan import TurnPlan
from launcher.turn.state import State

MODELS_PATH = f"{OPENAI_API}/models"


class OpenAIModels:
    """The services that the last turns have found."""

    def __init__(self) -> None:
        self._submit_s: Mapping[str, int] | None = None

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over which services there are.

        A service for which this turn decided nothing stays as it was known.
        """
        pools = {one.pool for one in ENGINES.values() if one.api == OPENAI_API}
        decided = {one.service for one in plan.services}
        known = self._submit_s or {}
        self._submit_s = {
            **{key: known[key] for key in known if key in state and key not in decided},
            **{
                one.service: one.submit_s
                for one in plan.services
                if one.route.pool in pools and not one.route.closing
            },
        }

    def answer(self, scope: str, path: str) -> StatisticsAnswer:
        """Answer a client that asks for ``MODELS_PATH`` or for a model below it.

        ``scope`` is what its key opens: TENANT, or TENANT/SERVICE.
        """
        if self._submit_s is None:
            said = "the launcher has just started. Try again."
            return openai_error(503, "SW-GATEWAY-STATISTICS", said)
        models = [
            ListedModel(key.partition("/")[2], tenant_of(key), submit_s)
            for key, submit_s in sorted(self._submit_s.items())
            if scope in {key, tenant_of(key)}
        ]
        return models_answer(models, path.removeprefix(MODELS_PATH).strip("/"))
