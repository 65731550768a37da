"""Lists the desks through which operators read and change the ledger."""

from typing import Any

from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import ReaderHandlers
from slicewise.slurm_plugin.api.budget_desk import BudgetDesk
from slicewise.slurm_plugin.api.calendar_desk import CalendarDesk
from slicewise.slurm_plugin.api.compile_desk import CompileDesk
from slicewise.slurm_plugin.api.quota_file_desk import QuotaFileDesk
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.record_desk import RecordDesk
from slicewise.slurm_plugin.api.repartition_desk import RepartitionDesk
from slicewise.slurm_plugin.api.tariff_desk import TariffDesk
from slicewise.slurm_plugin.api.tenant_desk import TenantDesk
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_DESKS = (
    *(TenantDesk, QuotaFileDesk, BudgetDesk, CalendarDesk, TariffDesk, RecordDesk),
    RepartitionDesk,
)


def operators_handlers(
    settings: Settings, slurm: Slurm, ledger: Ledger, cluster_state: ClusterState, reads: Reads
) -> ReaderHandlers:
    """What answers each request of operators about the ledger."""
    desks: list[Any] = [desk(settings, ledger, cluster_state, reads) for desk in _DESKS]
    desks.append(CompileDesk(settings, slurm, ledger, cluster_state, reads))
    return {kind: handle for desk in desks for kind, handle in desk.handlers().items()}
