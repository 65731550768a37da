"""What each command prints with ``--json``: its types, and their JSON schema.

Keys may be added to a version. A key that goes, or that gets another type or meaning, makes a new
version.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

JSON_VERSION = 1
DIALECT = "https://json-schema.org/draft/2020-12/schema"


_CLI = "slicewise.launcher.cli"
_SERVICE = "slicewise.launcher.services.overview:ServiceObservation"
_MESSAGES = "slicewise.cluster.rpc.read_messages"


_REPARTITION = "slicewise.cluster.language.gpus.repartitions:Repartition"
_RUN = "slicewise.cluster.language.rebalances:RebalanceRun"
_COMMANDS, _VIEWS = "slicewise.slurm_plugin.cli.commands", "slicewise.slurm_plugin.cli.views"
_STATUS = "slicewise.slurm_plugin.rules.accounting.overview"
_TENANTS = "slicewise.slurm_plugin.common.tenant_requests"
_CALENDAR = "slicewise.slurm_plugin.common.calendar_requests"
_BUDGETS = "slicewise.slurm_plugin.common.budget_requests"

_APPLIED = (
    f"{_CLI}.service:Applied",
    f"{_CLI}.service:AppliedAwaited",
    f"{_CLI}.show_file:PlannedService",
)

OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "why": (
        f"{_MESSAGES}:WhyAnswer",
        "slicewise.slurm_plugin.rules.explain.headroom:Explanation",
        f"{_MESSAGES}:PriorityAnswer",
    ),
    "overview": ("slicewise.cluster.rpc.overview_messages:OverviewAnswer",),
    "web login": ("slicewise.cluster.rpc.web_messages:WebLoginAnswer",),
    "service init": (f"{_CLI}.service_init:DraftWritten",),
    "service apply": (*_APPLIED, f"{_CLI}.service:AppliedStarted"),
    "service rollback": _APPLIED,
    "service events": (f"{_MESSAGES}:ServiceEvent[]",),
    "service trace": (f"{_CLI}.service_trace:ServiceTrace",),
    "service history": ("slicewise.launcher.rules.services.history:PastGeneration[]",),
    "service url": (f"{_CLI}.service_view:Address",),
    "service schema": (f"{_CLI}.show_file:FileKey[]",),
    "service list": (f"{_SERVICE}[]",),
    "service status": (_SERVICE,),
    "service wait": (_SERVICE, f"{_CLI}.service_wait:GoneService"),
    "service logs": ("slicewise.launcher.services.logs:Line",),
    "service scale": (f"{_CLI}.service_orders:Scaled",),
    "service restart": (f"{_CLI}.service_orders:Restarted",),
    "service delete": (f"{_CLI}.service_orders:Deleted",),
    "profile measure": (f"{_CLI}.profile:MeasuredFile",),
    "profile show": ("slicewise.cluster.language.measurements:Measurement[]",),
    "key create": (f"{_CLI}.keys:CreatedKey",),
    "key limits": ("slicewise.cluster.rpc.limit_messages:SubjectLimits[]",),
    "key list": ("slicewise.cluster.rpc.key_messages:KeyView[]",),
    "usage": (f"{_COMMANDS}.usage:UsageShown",),
    "energy": (f"{_COMMANDS}.energy:EnergyShown",),
    "cheapest": (f"{_COMMANDS}.cheapest:CheapestShown",),
    "mig costs": (f"{_VIEWS}.headroom:ProfileCost[]",),
    "mig profiles": (f"{_COMMANDS}.mig:ShownBoards",),
    "mig layouts": ("slicewise.cluster.language.gpus.layouts:Placement[][]",),
    "mig import": (f"{_COMMANDS}.mig:ModelLayout[]",),
    "mig instances": (f"{_VIEWS}.instances:ChosenInstances",),
    "report": ("slicewise.slurm_plugin.rules.pages.month:MonthReport",),
    "ledger statement": (
        f"{_VIEWS}.ledger:StatementShown",
        f"{_VIEWS}.ledger:JournalShown",
        f"{_VIEWS}.focus:FocusRow[]",
    ),
    "ledger balance": ("slicewise.slurm_plugin.rules.accounting.types:BalanceLine[]",),
    "ledger verify": (f"{_VIEWS}.ledger:TimedVerification",),
    "ledger db current": (f"{_COMMANDS}.ledger_db:DatabaseRevisions",),
    "ledger db backup": ("slicewise.slurm_plugin.rules.accounting.types:BackupRecord",),
    "ledger db check-backup": ("slicewise.slurm_plugin.rules.accounting.types:BackupRecord",),
    "tenant create": (f"{_TENANTS}:TenantPlaceAnswer",),
    "tenant move": (f"{_TENANTS}:TenantPlaceAnswer",),
    "tenant list": (f"{_STATUS}:TenantStatus[]",),
    "tenant show": (f"{_STATUS}:Details", f"{_STATUS}:TenantStatus[]"),
    "tenant delete": (f"{_VIEWS}.tenants:DeletedTenant",),
    "tenant import": ("slicewise.slurm_plugin.rules.quota.accounts:TakeOver[]",),
    "tenant check": ("slicewise.slurm_plugin.rules.quota.accounts:AccountDifference[]",),
    "tenant-quota set": (f"{_VIEWS}.tenants:QuotaOutcome",),
    "tenant-quota history": ("slicewise.slurm_plugin.rules.quota.types:QuotaChange[]",),
    "tenant-quota apply": (f"{_COMMANDS}.quota_plan:AppliedFile",),
    "tenant-quota loans": (
        "slicewise.slurm_plugin.rules.quota.loan_lines:LoanLine[]",
        "slicewise.slurm_plugin.rules.quota.types:LoanChange[]",
    ),
    "tenant-quota calendar create": (f"{_VIEWS}.calendar:NewWindow",),
    "tenant-quota calendar list": (
        f"{_VIEWS}.calendar:WindowNow[]",
        "slicewise.slurm_plugin.rules.quota.calendar:WindowRecord[]",
    ),
    "tenant-quota calendar delete": (
        "slicewise.slurm_plugin.common.calendar_requests:WindowAnswer",
    ),
    "budget set": (f"{_BUDGETS}:BudgetSetAnswer",),
    "budget delete": (f"{_BUDGETS}:BudgetDeleteAnswer",),
    "budget show": (f"{_STATUS}:BudgetStatus[]",),
    "budget grant": (f"{_BUDGETS}:BudgetEnterAnswer",),
    "budget adjust": (f"{_BUDGETS}:BudgetEnterAnswer",),
    "budget history": (f"{_VIEWS}.budgets:Event[]",),
    "tariff apply": ("slicewise.slurm_plugin.common.tariff_requests:TariffAnswer",),
    "tariff show": (f"{_COMMANDS}.tariff:TariffShown",),
    "tariff history": ("slicewise.slurm_plugin.rules.accounting.tariff:TariffRecord[]",),
    "ledger invoice": (f"{_COMMANDS}.invoice:InvoiceShown",),
    "simulate": ("slicewise.simulation.rules.report.documents:ComparedResult",),
    "compile": (
        f"{_COMMANDS}.compile:LimitsSet",
        f"{_COMMANDS}.compile:LimitsPlanned",
        "builtins:str[]",
    ),
    "uninstall": (
        "slicewise.slurm_plugin.quota_cycle.uninstall:Undone",
        f"{_COMMANDS}.uninstall_run:UninstallPlanned",
    ),
    "node probe": (f"{_COMMANDS}.node:ProbedNode",),
    "node gres": (f"{_COMMANDS}.node:NodeLines",),
    "doctor": (f"{_CLI}.doctor:Findings",),
    "repartition run": (
        f"{_COMMANDS}.repartition_run:RepartitionsDone",
        f"{_COMMANDS}.repartition_run:RepartitionsDry",
        f"{_COMMANDS}.repartition_run:RepartitionsBusy",
    ),
    "repartition history": (f"{_REPARTITION}[]",),
    "repartition show": (_REPARTITION,),
    "repartition close": (_REPARTITION,),
    "repartition survey": (f"{_COMMANDS}.repartition_run:SurveyedNodes",),
    "snapshot": (f"{_COMMANDS}.snapshot:WrittenSnapshot",),
    "observe": ("slicewise.slurm_plugin.rules.explain.observed:ObservedReport",),
    "rebalance": (
        _RUN,
        f"{_COMMANDS}.rebalance_run:PlannedRun",
        f"{_COMMANDS}.rebalance_run:BusyRun",
    ),
    "rebalance history": (f"{_RUN}[]",),
    "rebalance show": (_RUN,),
    "admission adopt": (f"{_COMMANDS}.adopt:AdoptedJobs",),
    "admission install": (f"{_COMMANDS}.admission:LuaTrial",),
    "sandbox status": ("slicewise.sandbox.host.status:SandboxStatus",),
    "admission status": (f"{_VIEWS}.admission:AdmissionStatus",),
}
"""The documents that each command may print, one of them at a time: ``module:name`` of its type,
with ``[]`` for a list of them.

``service status --watch`` and ``service logs`` print one on each line (NDJSON).
"""


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON schema of what a command prints; KeyError if it prints no JSON."""
    definitions: dict[str, Any] = {}
    schemas = [_document(name, definitions) for name in OUTPUTS[command]]
    return {
        "$schema": DIALECT,
        "$id": f"urn:slicewise:json:{JSON_VERSION}:{command.replace(' ', '-')}",
        "title": f"slicewise {command} --json",
        **(schemas[0] if len(schemas) == 1 else {"anyOf": schemas}),
        **({"$defs": definitions} if definitions else {}),
    }


def _document(place: str, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _value(place.rstrip("[]"), definitions)
    for _ in range(place.count("[]")):
        schema = {"type": "array", "items": schema}
    return schema


def _value(place: str, definitions: dict[str, Any]) -> dict[str, Any]:
    # Imported here: pydantic's adapters, and the types, belong to many commands.
    from pydantic import TypeAdapter  # noqa: PLC0415

    module, _, name = place.partition(":")
    schema = TypeAdapter(getattr(import_module(module), name)).json_schema(mode="serialization")
    schema.pop("title", None)
    definitions.update(schema.pop("$defs", {}))
    for part in (schema, *definitions.values()):
        if "properties" in part:
            # Every field is written, also one that has a default.
            part["required"] = list(part["properties"])
    return schema
