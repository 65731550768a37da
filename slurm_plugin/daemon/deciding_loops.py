"""The daemon's loops that decide about quotas, jobs and leases, connected to each other."""

from collections.abc import Callable, Mapping

from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.daemon.charging_loop import ChargingLoop
from slicewise.slurm_plugin.daemon.deferred_loop import DeferredLoop
from slicewise.slurm_plugin.daemon.lease_loop import LeaseLoop
from slicewise.slurm_plugin.daemon.periodic import Step, until_done
from slicewise.slurm_plugin.daemon.priority_loop import PriorityLoop
from slicewise.slurm_plugin.daemon.qos_loop import QosLoop
from slicewise.slurm_plugin.daemon.quota_loop import QuotaLoop
from slicewise.slurm_plugin.daemon.service_tag_loop import ServiceTagLoop
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.round.what_if import ImaginedRound
from slicewise.slurm_plugin.state.cluster_state import ClusterState


class DecidingLoops:
    """The loops that change Slurm and the ledger by what ``ClusterState`` has seen.

    Attributes:
        charging, priorities, limits: the loops that are started one by one.
        led_turns: by name the steps that only the daemon that leads takes. ``limits`` takes turns
            beside one that leads, too.
        news: by name of a step, ``limits`` among them, what makes its next turn due.
    """

    def __init__(
        self,
        settings: Settings,
        slurm: Slurm,
        ledger: Ledger,
        cluster_state: ClusterState,
        leader: Leader,
        *,
        on_imagined: Callable[[ImaginedRound], None] = lambda _: None,
    ) -> None:
        """``on_imagined`` is as in ``QuotaLoop``."""
        self._cluster_state = cluster_state
        self.charging = ChargingLoop(settings, slurm, ledger, cluster_state)
        self.priorities = PriorityLoop(settings, slurm, ledger, cluster_state)
        self.limits = QuotaLoop(
            settings,
            slurm,
            ledger,
            cluster_state,
            leader,
            held_lately=self.priorities.held_lately,
            on_imagined=on_imagined,
        )
        self.news = {name: cluster_state.after_looks() for name in ("limits", "moves")}
        self.led_turns: Mapping[str, Step] = {
            "bookkeeping": self.charging.turn,
            "priorities": self.priorities.turn,
            "moves": QosLoop(settings, slurm, cluster_state).turn,
            "leases": LeaseLoop(settings, slurm, cluster_state).turn,
            "late_decisions": DeferredLoop(settings, slurm, cluster_state).turn,
            "service_tags": ServiceTagLoop(settings, slurm, cluster_state).turn,
        }

    async def start(self, interval_s: float) -> None:
        """See Slurm whole, and put the quotas in force in it, or find that this can't be done now.

        ``charging`` has been started before.
        """
        await until_done("start_slurm", self._cluster_state.turn, interval_s)
        await until_done("start_priorities", self.priorities.start, interval_s)
        await until_done("start_limits", self.limits.start, interval_s)
