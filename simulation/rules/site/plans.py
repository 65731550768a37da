"""How a simulated site decides: by Slurm alone, or by Slicewise."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.services.service import SimulatedService
from slicewise.simulation.rules.slurm_model.job_requests import AccountLimits, QosLimits
from slicewise.slurm_plugin.rules.quota.calendar import Window
from slicewise.slurm_plugin.rules.quota.types import Policy


@dataclass(frozen=True)
class SlurmPlan:
    """Slurm alone: jobs keep the QOS that they had, under the limits that the site has.

    It runs no services: nobody would start and end their replicas.

    Attributes:
        qos: limits by QOS; a QOS that is not here limits nothing.
        accounts: limits by account; those that are not here have only their place in the tree.
    """

    name: str
    qos: Mapping[str, QosLimits] = field(default_factory=dict, hash=False)
    accounts: Mapping[str, AccountLimits] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class KnownSpending:
    """What a site's ledger said at ``at_s`` was used up of its budgets.

    Attributes:
        millislice_s: of each budget in its running period, less what was carried over into it.
        periods_s: when that period began, in Unix seconds.
    """

    at_s: float
    millislice_s: Mapping[str, int] = field(hash=False)
    periods_s: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True)
class SlicewisePlan:
    """Slicewise in mode enforce: admission decides the QOS, rounds of quotas the limits.

    Attributes:
        tenants: the ledger's policy, without the calendar's windows.
        known_spending: what the site's ledger says of its budgets; None if there is none.
        spent: millislice-seconds of each budget that are used up in its period at the beginning.
        qos, accounts: the site's own limits, as in ``SlurmPlan``; Slicewise's are laid over them.
        priority_s: seconds at least between two looks at the priorities of all waiting jobs.
        services: what follows its requests, and is applied at the latest when the site begins.
        turn_s: seconds between two turns of the launcher for a service for which something moves.
        calm_s: the same while its replicas just work.
    """

    name: str
    settings: Settings
    tenants: Policy = field(hash=False)
    windows: tuple[Window, ...] = ()
    priority_s: float = 60.0
    services: tuple[SimulatedService, ...] = ()
    turn_s: float = 1.0
    calm_s: float = 5.0
    qos: Mapping[str, QosLimits] = field(default_factory=dict, hash=False)
    accounts: Mapping[str, AccountLimits] = field(default_factory=dict, hash=False)
    known_spending: KnownSpending | None = None
    spent: Mapping[str, int] = field(default_factory=dict, hash=False)


SitePlan = SlurmPlan | SlicewisePlan
