"""Tables of the journal of repartitioning, and of the last look at each GPU node."""

from slicewise.slurm_plugin.ledger.tables import (
    jsons,
    keys,
    ledger_table,
    number_keys,
    numbers,
    texts,
    times,
)

repartitions = ledger_table(
    "repartitions",
    *number_keys("id"),
    *texts("cluster", "node", "gpu_uuid"),
    *jsons("before", "after", "moves"),
    *texts("reason", "author"),
    *numbers("gain_millislice_s", "drained_millislice_s"),
    *texts("state", "error", "slurm_conf", "gres_conf"),
    *times("started_at", "ended_at"),
    *jsons("ends"),
)

repartition_steps = ledger_table(
    "repartition_steps",
    *number_keys("id"),
    *numbers("repartition_id"),
    *texts("step", "direction", "outcome"),
    *times("started_at", "ended_at"),
    *texts("words"),
)

mig_nodes = ledger_table(
    "mig_nodes", *keys("cluster", "node"), *times("seen_at"), *jsons("inventory")
)
