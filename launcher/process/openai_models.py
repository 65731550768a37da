"""Lists services that speak OpenAI's API as models, and their adapters: a tenant's, or all that a
key may use.

Those that sleep are models, too.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from slicewise.cluster.language.adapters import model_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.model_names import meanings
from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.rpc.limit_messages import SubjectLimits
from slicewise.launcher.rules.engines.engine import OPENAI_API
from slicewise.launcher.rules.engines.openai import ListedModel, models_answer, openai_error
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.engines.statistics import StatisticsAnswer
from slicewise.launcher.rules.gateway.subjects import subject_of
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.state import State

MODELS_PATH = f"{OPENAI_API}/models"


@dataclass(frozen=True)
class _Service:
    """When a service was last applied, in Unix seconds, and the names of its adapters."""

    submit_s: int
    adapters: tuple[str, ...]

    def models(self, owner: str, name: str) -> Iterator[ListedModel]:
        """Yield the service as a model of this name, then its adapters."""
        yield ListedModel(name, owner, self.submit_s)
        for adapter in self.adapters:
            yield ListedModel(model_name(name, adapter), owner, self.submit_s, parent=name)


class OpenAIModels:
    """The services that the last turns have found."""

    def __init__(self) -> None:
        self._known: Mapping[str, _Service] | None = None
        self._meanings: Mapping[str, str] = {}
        self._only: Mapping[str, Collection[str]] = {}

    def told(self, models: Mapping[str, str], limits: Iterable[SubjectLimits] = ()) -> None:
        """Take over what models mean, as ``slicewise.cluster.language.model_names`` says, and which
        ones some subjects may only ask.
        """
        self._meanings = models
        self._only = {
            subject_of(held.tenant, held.person, held.key_id): frozenset(held.limits.models)
            for held in limits
            if held.limits.models is not None
        }

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over which services there are.

        A service for which this turn decided nothing stays as it was known.
        """
        groups = {engine.group for engine in ENGINES.values() if engine.api == OPENAI_API}
        decided = {service.service for service in plan.services}
        models = self._known or {}
        self._known = {
            **{key: models[key] for key in models if key in state and key not in decided},
            **{
                service.service: _Service(service.submit_s, tuple(sorted(service.route.adapters)))
                for service in plan.services
                if service.route.group in groups and not service.route.terms.closing
            },
        }

    def answer(self, scope: str, path: str, subjects: Iterable[str] = ()) -> StatisticsAnswer:
        """Answer a client that asks for ``MODELS_PATH`` or for a model below it.

        What the limits of one of its ``subjects`` refuse is not listed.

        ``scope`` is what its key opens: TENANT, TENANT/SERVICE or TENANT/OWNER/SERVICE. At a
        tenant's address those of its own are listed. Behind a slash it stands for the site's: all
        that the key may use, by what a client can give as model there.
        """
        if self._known is None:
            message = "the launcher has just started. Try again."
            return openai_error(503, Code.GATEWAY_STATISTICS, message)
        limits = [self._only[subject] for subject in subjects if subject in self._only]
        services = {
            key: service
            for key, service in self._known.items()
            if all(key in models for models in limits)
        }
        names = self._usable if scope.startswith("/") else self._own
        models = [
            model
            for key, name in names(services, scope.removeprefix("/"))
            for model in services[key].models(tenant_of(key), name)
        ]
        return models_answer(models, unquote(path).removeprefix(MODELS_PATH).strip("/"))

    def _own(self, services: Mapping[str, _Service], scope: str) -> Iterator[tuple[str, str]]:
        """Yield a tenant's services, or the one that a key opens, with their names."""
        for key in sorted(services):
            if scope in {key, tenant_of(key)}:
                yield key, key.partition("/")[2]

    def _usable(self, services: Mapping[str, _Service], scope: str) -> Iterator[tuple[str, str]]:
        """Yield services with what they are called at the site's address, aliases last."""
        tenant, _, only = scope.partition("/")
        named: dict[str, set[str]] = defaultdict(set)
        for model, service in meanings(self._meanings, tenant, services).items():
            if only in {"", service} or f"{tenant}/{only}" == service:
                named[service].add(model)
        for service in sorted(named.keys() & services.keys()):
            name = service.partition("/")[2]
            yield service, name if name in named[service] else service
            for alias in sorted(named[service] - {name, service}):
                yield service, alias
