"""Says what one replica of a service asks of Slurm, and what that costs.

It is computed once, from the service's spec. Admission, the batch scripts and the notes on quota
use it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.gres import GpuRequest, gres_text
from slicewise.cluster.language.units import Millislices


@dataclass(frozen=True)
class ReplicaShape:
    """What one replica asks of Slurm.

    Attributes:
        gres_type: type of its GPU instances; None while Slicewise has still to choose one.
        gpus: instances on each of its nodes.
        nodes: number of its nodes.
    """

    gres_type: str | None
    gpus: int = 1
    nodes: int = 1

    @property
    def request(self) -> GpuRequest:
        """Its instances over all of its nodes."""
        return GpuRequest(self.gres_type, self.gpus * self.nodes)

    @property
    def words(self) -> str:
        """The shape for users: ``1g.10gb``, ``2 × a100``, ``2 nodes × 4 × a100``."""
        gpus = f"{self.gpus} × " if self.gpus > 1 or self.nodes > 1 else ""
        nodes = f"{self.nodes} nodes × " if self.nodes > 1 else ""
        return f"{nodes}{gpus}{self.gres_type}"

    def fits_on(self, instances: Iterable[int]) -> bool:
        """Whether as many nodes as it needs have its instances; ``instances`` are each node's."""
        return sum(count >= self.gpus for count in instances) >= self.nodes

    @property
    def gres(self) -> str:
        """The text of ``--gres``, which counts by node: ``gpu:1g.10gb:1``."""
        return gres_text(GpuRequest(self.gres_type, self.gpus))

    def cost_millislices(self, costs: Mapping[str, Millislices]) -> Millislices:
        """What a replica costs; 0 while its type is open, or for a type without a known cost.

        ``costs`` are those of one instance, by type.
        """
        return Millislices(self.request.count * costs.get(self.gres_type or "", 0))
