"""Every command of ``slicewise``: where it is implemented, and its line in the listing.

The listing must not import the commands, so their lines are repeated here; a test compares them.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command, or a tree of them.

    Attributes:
        place: ``module:name`` of a Typer, or of a function.
        help: the first paragraph of its help.
        epilog: of a function; a Typer has its own.
        stays: it runs until it is stopped.
    """

    place: str
    help: str
    epilog: str = ""
    stays: bool = False


FOR_EVERYBODY: Mapping[str, Command] = {
    "why": Command(
        "slicewise.slurm_plugin.cli.commands.why:why_app",
        "Say why a job waits, or how a service or a tenant stands.",
    ),
    "overview": Command(
        "slicewise.slurm_plugin.cli.commands.overview:overview_app",
        "Show the cluster on one screen, and what needs attention with the command that mends it.",
    ),
    "top": Command(
        "slicewise.slurm_plugin.cli.commands.top:top_app",
        "Show the cluster live on the whole terminal: what needs attention, tenants, services,"
        " GPUs.",
    ),
    "web": Command(
        "slicewise.slurm_plugin.cli.commands.web:web_app",
        "The page in the browser: log in, or run its server.",
    ),
    "sbatch": Command(
        "slicewise.slurm_plugin.cli.commands.sbatch:sbatch_app",
        "Run sbatch, and show what Slicewise decides about the job.",
    ),
    "service": Command(
        "slicewise.launcher.cli.service:service_app",
        "Inference services that scale with their requests.",
    ),
    "profile": Command(
        "slicewise.launcher.cli.profile:profile_app",
        "How fast a model is on the cluster's GPU types.",
    ),
    "key": Command(
        "slicewise.launcher.cli.keys:key_app",
        "API keys: which clients may send requests to a tenant's services.",
    ),
    "usage": Command(
        "slicewise.slurm_plugin.cli.commands.usage:usage_app",
        "Show requests and tokens, by service, day, month, tenant, person or key.",
    ),
    "energy": Command(
        "slicewise.slurm_plugin.cli.commands.energy:energy_app",
        "Show kilowatt-hours of GPU boards, by tenant, service, person, day, node or run.",
    ),
    "cheapest": Command(
        "slicewise.slurm_plugin.cli.commands.cheapest:cheapest_app",
        "Say when a job that can wait costs least money, or least CO2, and still ends in time.",
    ),
    "mig": Command(
        "slicewise.slurm_plugin.cli.commands.mig:mig_app",
        "How GPUs can be cut: profiles, layouts, costs.",
    ),
    "ledger": Command(
        "slicewise.slurm_plugin.cli.commands.ledger:ledger_app",
        "What was used: statements, balances, checks; and the database in which it stands.",
    ),
    "report": Command(
        "slicewise.slurm_plugin.cli.commands.report:report_app",
        "Report a month: how the slices were used, by state, tenant and service, with drawings.",
    ),
    "budget": Command(
        "slicewise.slurm_plugin.cli.commands.budget:budget_app",
        "What tenants may use up in a period.",
    ),
    "schema": Command(
        "slicewise.launcher.cli.schema:schema_app",
        "Print the JSON schema of what a command prints with --json.",
    ),
}

FOR_OPERATORS: Mapping[str, Command] = {
    "tenant": Command(
        "slicewise.slurm_plugin.cli.commands.tenant:tenant_app",
        "Tenants: Slurm accounts that are charged.",
    ),
    "tenant-quota": Command(
        "slicewise.slurm_plugin.cli.commands.tenant_quota:tenant_quota_app",
        "Who may hold how many slices: quotas, plans, loans, the calendar.",
    ),
    "tariff": Command(
        "slicewise.slurm_plugin.cli.commands.tariff:tariff_app",
        "What use costs, from which day on.",
    ),
    "simulate": Command(
        "slicewise.simulation.cli.simulate:simulate",
        "Replay a site's past with Slicewise's own decisions, and with other quotas beside it.",
        "Examples: slicewise simulate site.zip | slicewise simulate site.zip --change quotas.toml"
        " --output october.html | slicewise simulate cluster.toml --jobs philly.csv --days 7"
        " --service chat.toml --requests nlp/chat=requests.csv | slicewise simulate cluster.toml"
        " --pooled --service bert.toml --service ner.toml --requests nlp/bert=bert.csv"
        " --requests nlp/ner=ner.csv",
    ),
    "compile": Command(
        "slicewise.slurm_plugin.cli.commands.compile:compile_command",
        "Bring Slurm's limits to what the ledger says, as the daemon does by itself.",
        "Examples: slicewise compile --dry-run | slicewise compile --slurm-conf",
    ),
    "node": Command(
        "slicewise.slurm_plugin.cli.commands.node:node_app",
        "A GPU node: what is in it, by its driver.",
    ),
    "repartition": Command(
        "slicewise.slurm_plugin.cli.commands.repartition:repartition_app",
        "Give GPUs other MIG instances, so that waiting jobs find what they ask for.",
    ),
    "rebalance": Command(
        "slicewise.slurm_plugin.cli.commands.rebalance:rebalance_app",
        "Bring everything to what is wanted now: ledger, loans, limits, priorities, GPUs;"
        " for cron.",
    ),
    "setup": Command(
        "slicewise.slurm_plugin.cli.commands.setup:setup_command",
        "Ask what the site is like, and write proposals of all files, with the steps in order.",
        "Examples: slicewise setup | slicewise setup --services-only"
        " | slicewise setup --answers site.toml --output proposals",
    ),
    "doctor": Command(
        "slicewise.launcher.cli.doctor:doctor",
        "Look at the whole site, and say what is wrong, why it matters, and what mends it.",
        "Examples: slicewise doctor | slicewise doctor --fix"
        " | slicewise doctor --section nodes --node gpu07 --json",
    ),
    "snapshot": Command(
        "slicewise.slurm_plugin.cli.commands.snapshot:snapshot_command",
        "Write what the simulator needs of this site into one archive: Slurm, ledger, settings.",
        "Examples: slicewise snapshot site.zip | slicewise snapshot site.zip --days 30"
        " --pseudonyms all",
    ),
    "observe": Command(
        "slicewise.slurm_plugin.cli.commands.observe:observe_app",
        "Say what the days in mode observe have shown: refusals, moves, loans, recalls, use.",
    ),
    "admission": Command(
        "slicewise.slurm_plugin.cli.commands.admission:admission_app", "slicewise.lua in slurmctld."
    ),
    "gateway": Command(
        "slicewise.launcher.cli.gateway:gateway_app", "The gateway in front of all services."
    ),
    "daemon": Command(
        "slicewise.slurm_plugin.cli.commands.daemon:run_daemon",
        "Run beside slurmctld, as SlurmUser: decide submissions, follow Slurm, keep the ledger.",
        "Examples: slicewise daemon --config /etc/slicewise/slicewise.toml"
        " | systemctl start slicewise-daemon",
        stays=True,
    ),
    "launcher": Command(
        "slicewise.launcher.cli.launcher:run_launcher",
        "Run the launcher, as daemon.launcher_user: it gives each service the replicas it needs.",
        "Examples: slicewise launcher --config /etc/slicewise/slicewise.toml"
        " | systemctl start slicewise-launcher",
        stays=True,
    ),
    "uninstall": Command(
        "slicewise.slurm_plugin.cli.commands.uninstall:uninstall_command",
        "Put all of Slurm's limits back to what they were before Slicewise, and remove its QOS.",
        "Examples: slicewise uninstall --dry-run | slicewise uninstall --yes",
    ),
    "sandbox": Command(
        "slicewise.sandbox.cli:app",
        "A whole cluster on this machine: Slurm with emulated MIG GPUs, PostgreSQL, HAProxy.",
    ),
}

COMMANDS: Mapping[str, Command] = {**FOR_EVERYBODY, **FOR_OPERATORS}
