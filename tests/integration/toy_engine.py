"""A site's engine, as a package of its own would have it: one module and an entry point."""

from slicewise.cluster.language.service import ServiceSpec
from slicewise.launcher.rules.engines.engine import Parallelism
from slicewise.launcher.rules.engines.llamacpp import LlamaCpp


class Toy(LlamaCpp):
    """It speaks as llama.cpp does, and spreads a model over whatever it is given."""

    title, group = "Toy", "toy"
    parallelism = Parallelism(gpus=True, nodes=True, instances=True)

    def options(self, spec: ServiceSpec, /, *, is_measured: bool) -> tuple[str, ...]:
        if is_measured:
            raise ValueError("its server does not count tokens")
        options = (f'--alias {spec.model} --tags "$id" --host "$private/http.sock"',)
        if spec.nodes == 1:
            return (*options, "--ranks 1")
        leader = '--leader "$leader_address:$leader_port"'
        return (*options, f'--rank "$node_rank" --ranks {spec.nodes} {leader}')


ENGINE = Toy()
