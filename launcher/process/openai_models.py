"""Lists a tenant's services that speak OpenAI's API as its models, and their adapters.

Those that sleep are models, too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from slicewise.cluster.language.adapters import model_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.service import tenant_of
from slicewise.launcher.rules.engines.engine import OPENAI_API
from slicewise.launcher.rules.engines.openai import ListedModel, models_answer, openai_error
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.engines.statistics import StatisticsAnswer
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.state import State

MODELS_PATH = f"{OPENAI_API}/models"


@dataclass(frozen=True)
class _Service:
    """When a service was last applied, in Unix seconds, and the names of its adapters."""

    submit_s: int
    adapters: tuple[str, ...]

    def models(self, key: str) -> Iterator[ListedModel]:
        """Yield the service as a model, then its adapters."""
        tenant, _, name = key.partition("/")
        yield ListedModel(name, tenant, self.submit_s)
        for adapter in self.adapters:
            yield ListedModel(model_name(name, adapter), tenant, self.submit_s, parent=name)


class OpenAIModels:
    """The services that the last turns have found."""

    def __init__(self) -> None:
        self._known: Mapping[str, _Service] | None = None

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over which services there are.

        A service for which this turn decided nothing stays as it was known.
        """
        pools = {engine.pool for engine in ENGINES.values() if engine.api == OPENAI_API}
        decided = {service.service for service in plan.services}
        models = self._known or {}
        self._known = {
            **{key: models[key] for key in models if key in state and key not in decided},
            **{
                service.service: _Service(service.submit_s, tuple(sorted(service.route.adapters)))
                for service in plan.services
                if service.route.pool in pools and not service.route.closing
            },
        }

    def answer(self, scope: str, path: str) -> StatisticsAnswer:
        """Answer a client that asks for ``MODELS_PATH`` or for a model below it.

        ``scope`` is what its key opens: TENANT, or TENANT/SERVICE.
        """
        if self._known is None:
            message = "the launcher has just started. Try again."
            return openai_error(503, Code.GATEWAY_STATISTICS, message)
        models = [
            model
            for key, service in sorted(self._known.items())
            if scope in {key, tenant_of(key)}
            for model in service.models(key)
        ]
        return models_answer(models, unquote(path).removeprefix(MODELS_PATH).strip("/"))
