"""Records commands.txt: what Waldur's site agent sends to sacctmgr, here the one of slurm-emulator.

python -m venv /tmp/waldur
/tmp/waldur/bin/pip install waldur-site-agent-slurm==1.0.7 slurm-emulator==0.9.10
/tmp/waldur/bin/python tests/assets/waldur/record.py > tests/assets/waldur/commands.txt

The emulator keeps its state in /tmp/slurm_emulator_db.json: remove that before and afterwards.
"""

import sys
from pathlib import Path

from waldur_site_agent_slurm.backend import SlurmBackend

ACCOUNT = "hpc_alloc"
SETTINGS = {
    "default_account": "root",
    "customer_prefix": "hpc_",
    "project_prefix": "hpc_",
    "allocation_prefix": "hpc_",
    "cluster_name": "default",
    "slurm_bin_path": str(Path(sys.executable).parent),
    "periodic_limits": {"enabled": True, "limit_type": "GrpTRES"},
}
SWAP = {"qos_default": "normal", "qos_paused": "paused", "qos_downscaled": "limited"}
LEVER = {"qos_management": {"enabled": True, "skip_qos_swap": True}}
PERIODIC = {
    "fairshare": 50,
    "limit_type": "GrpTRES",
    "grp_tres_mins": {"gres/gpu": 4, "billing": 9000},
    "reset_raw_usage": True,
}


def component(label: str) -> dict:
    """What an offering says of a TRES."""
    return {
        "limit": 10,
        "measured_unit": "h",
        "unit_factor": 60,
        "label": label,
        "accounting_type": "usage",
    }


def make(agent: SlurmBackend) -> None:
    """Make an allocation, its limits and its member."""
    for qos in ("paused", "limited"):
        agent.client.create_qos(qos)
    agent.client.create_resource("hpc_vis", "Vision", "waldur")
    agent.client.create_resource(ACCOUNT, "Allocation", "waldur", "hpc_vis")
    agent.client.set_resource_limits(ACCOUNT, {"cpu": 600000, "gres/gpu": 60000})
    agent.client.create_association("alice", ACCOUNT, ACCOUNT)


def dedicated(agent: SlurmBackend) -> None:
    """Give the account a QOS of its own."""
    agent._create_account_qos(ACCOUNT)
    agent._attach_account_qos(ACCOUNT)


STEPS = {
    "make": make,
    "periodic": lambda agent: agent._apply_settings_production(
        ACCOUNT, PERIODIC, {"limit_type": "GrpTRES"}
    ),
    "down": lambda agent: agent.downscale_resource(ACCOUNT),
    "pause": lambda agent: agent.pause_resource(ACCOUNT),
    "restore": lambda agent: agent.restore_resource(ACCOUNT),
    "dedicated": dedicated,
}
WAYS = (
    ("swap", SWAP, ("make", "periodic", "down", "pause", "restore")),
    ("lever", LEVER, ("dedicated", "pause", "restore")),
)

lines = [
    "# What waldur-site-agent-slurm 1.0.7 sent to sacctmgr of slurm-emulator 0.9.10. After 'swap'",
    "# with qos_paused and qos_downscaled, after 'lever' with qos_management.skip_qos_swap.",
]
for name, settings, steps in WAYS:
    lines.append(f"# {name}")
    backend = SlurmBackend(
        {**SETTINGS, **settings}, {"cpu": component("CPU"), "gres/gpu": component("GPU")}
    )
    for step in steps:
        backend.client.executed_commands.clear()
        STEPS[step](backend)
        lines.append(f"## {step}")
        lines += backend.client.executed_commands
text = "".join(f"{line}\n" for line in lines)
sys.stdout.write(text.replace(f"{SETTINGS['slurm_bin_path']}/", ""))
