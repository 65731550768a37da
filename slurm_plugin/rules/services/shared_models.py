"""Decides which services each tenant may ask beside its own, and by which names of models.

A service's ``NAME`` and ``OWNER/NAME`` mean it, and an alias of the operator's. Of a ``NAME`` the
tenant's own service comes first, then an alias, then the only service of that name that others
share with it; a ``NAME`` that several owners share means none. An alias opens nothing: it is a name
for those who may use its service.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from slicewise.cluster.language.audience import EVERY_TENANT, audience_of
from slicewise.cluster.language.model_names import ALL, NONE, below, entry
from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.slurm_plugin.rules.quota.tenants import ancestors, downward
from slicewise.slurm_plugin.rules.quota.types import Policy


def model_entries(
    policy: Policy, services: Iterable[ServiceView], aliases: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the entries of the gateway's map, as ``slicewise.cluster.language.model_names`` says.

    ``services`` are all living ones; of a service the newest generation says who may ask, and one
    that is being deleted is left out. ``aliases`` are services, ``OWNER/NAME``, by alias. A tenant
    that an audience names and that the policy lacks is nobody.

    There are as many entries as there are names of services and tenants in audiences, however many
    tenants there are below those: with 1,000 tenants and 100 services that share with 16 tenants
    each, at most 100 × 16 × 2, and 1,000 that lead from a tenant to one above it.
    """
    audiences = _audiences(services)
    own, shared = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for service, audience in audiences.items():
        own[tenant_of(service)].add(service)
        for tenant in audience:
            shared[tenant].add(service)
    names = _Names.of(audiences, aliases)
    visible: dict[str, AbstractSet[str]] = {ALL: shared[EVERY_TENANT]}
    entries = dict(names.entries(ALL, visible[ALL], visible[ALL], frozenset()))
    for tenant in downward(policy):
        outer = next((below(up) for up in ancestors(policy, tenant) if below(up) in visible), ALL)
        scope = outer
        if tenant in shared:
            scope = below(tenant)
            visible[scope] = visible[outer] | shared[tenant]
            entries |= names.entries(scope, shared[tenant], visible[scope], visible[outer])
            entries |= _leads(scope, outer)
        entries |= _leads(tenant, scope)
        if tenant in own:
            entries |= names.own_entries(tenant, own[tenant], visible[scope])
    return entries


def _leads(scope: str, outer: str) -> Mapping[str, str]:
    return {} if outer == ALL else {scope: outer}


def _audiences(services: Iterable[ServiceView]) -> Mapping[str, AbstractSet[str]]:
    """Return the tenants that the audience of each service names, by ``OWNER/NAME``."""
    newest: dict[str, ServiceView] = {}
    for view in sorted(services, key=lambda view: view.array_job_id):
        newest[f"{view.tenant}/{view.name}"] = view
    return {
        service: audience_of(view.directives)
        for service, view in newest.items()
        if view.order.delete_s is None
    }


@dataclass(frozen=True)
class _Names:
    """What names of models can mean.

    Attributes:
        services: the services of each ``NAME``.
        aliases: services by alias.
        aliases_of: aliases by service.
    """

    services: Mapping[str, AbstractSet[str]]
    aliases: Mapping[str, str]
    aliases_of: Mapping[str, AbstractSet[str]]

    @classmethod
    def of(cls, services: Iterable[str], aliases: Mapping[str, str]) -> "_Names":
        by_name: dict[str, set[str]] = defaultdict(set)
        for service in services:
            by_name[service.partition("/")[2]].add(service)
        aliases_of: dict[str, set[str]] = defaultdict(set)
        for alias, service in aliases.items():
            aliases_of[service].add(alias)
        return cls(by_name, aliases, aliases_of)

    def entries(
        self,
        scope: str,
        new: AbstractSet[str],
        visible: AbstractSet[str],
        visible_above: AbstractSet[str],
    ) -> Mapping[str, str]:
        """Return the entries of a scope: names that the ``new`` services give another meaning."""
        entries = {}
        for service in new:
            for model in self._of(service):
                before, after = self._meaning(model, visible_above), self._meaning(model, visible)
                if before != after:
                    entries[entry(scope, model)] = after or NONE
        return entries

    def own_entries(
        self, tenant: str, own: AbstractSet[str], visible: AbstractSet[str]
    ) -> Mapping[str, str]:
        """Return the entries of a tenant: names that mean its own services, and would not
        otherwise.
        """
        meant = {alias: service for service in own for alias in self.aliases_of.get(service, ())}
        meant |= {service.partition("/")[2]: service for service in own}
        return {
            entry(tenant, model): service
            for model, service in meant.items()
            if (self._meaning(model, visible) or f"{tenant}/{model}") != service
        }

    def _of(self, service: str) -> Iterator[str]:
        yield service
        yield service.partition("/")[2]
        yield from self.aliases_of.get(service, ())

    def _meaning(self, model: str, visible: AbstractSet[str]) -> str | None:
        if model in visible:
            return model
        if (service := self.aliases.get(model)) in visible:
            return service
        shared = self.services.get(model, frozenset()) & visible
        return next(iter(shared)) if len(shared) == 1 else None
