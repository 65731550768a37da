"""What each command prints with ``--json``: its types, and their JSON schema.

Keys may be added to a version. A key that goes, or that gets another type or meaning, makes a new
version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

JSON_VERSION = 1
DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class Document:
    """A JSON document.

    Attributes:
        parts: ``module:name`` of types; the document has the keys of all of them.
        depth: 0 for such an object, 1 for a list of them, 2 for a list of lists.
    """

    parts: tuple[str, ...]
    depth: int = 0


_CLI, _SITE = "slicewise.launcher.cli", "slicewise.slurm_plugin.cli.common.json_shapes"
_SERVICE = "slicewise.launcher.services.overview:ServiceObservation"
_QUOTA, _MESSAGES = (
    "slicewise.slurm_plugin.rules.quota.types",
    "slicewise.cluster.rpc.read_messages",
)


def _one(*parts: str) -> tuple[Document, ...]:
    return (Document(parts),)


def _many(*parts: str) -> tuple[Document, ...]:
    return (Document(parts, depth=1),)


_TENANT = (
    f"{_SITE}:TenantJson",
    f"{_QUOTA}:Quota",
    "slicewise.slurm_plugin.rules.quota.standings:Standing",
)
_DETAILS = (*_TENANT, f"{_SITE}:TenantDetailsJson")
_CHANGE = f"{_SITE}:ChangeOfTenantJson"
_REPARTITION = "slicewise.cluster.language.gpus.repartitions:Repartition"
_RUN = "slicewise.cluster.language.rebalances:RebalanceRun"
_COMMANDS, _VIEWS = "slicewise.slurm_plugin.cli.commands", "slicewise.slurm_plugin.cli.views"

_APPLIED = (
    *_one(f"{_CLI}.service:Applied"),
    *_one(f"{_CLI}.service:AppliedAwaited"),
    *_one(f"{_CLI}.show_file:PlannedService"),
)

OUTPUTS: Mapping[str, tuple[Document, ...]] = {
    "why": (
        *_one(f"{_MESSAGES}:WhyAnswer"),
        *_one("slicewise.slurm_plugin.rules.explain.headroom:Explanation"),
        *_one(f"{_MESSAGES}:PriorityAnswer"),
    ),
    "overview": _one("slicewise.cluster.rpc.overview_messages:OverviewAnswer"),
    "web login": _one("slicewise.cluster.rpc.web_messages:WebLoginAnswer"),
    "service init": _one(f"{_CLI}.service_init:DraftWritten"),
    "service apply": (*_APPLIED, *_one(f"{_CLI}.service:AppliedStarted")),
    "service rollback": _APPLIED,
    "service events": _many(f"{_MESSAGES}:ServiceEvent"),
    "service history": _many("slicewise.launcher.rules.services.history:PastGeneration"),
    "service url": _one(f"{_CLI}.service_view:Address"),
    "service schema": _many(f"{_CLI}.show_file:FileKey"),
    "service list": _many(_SERVICE),
    "service status": _one(_SERVICE),
    "service wait": (*_one(_SERVICE), *_one(f"{_CLI}.service_wait:GoneService")),
    "service logs": _one("slicewise.launcher.services.logs:Line"),
    "service scale": _one(f"{_CLI}.service_orders:Scaled"),
    "service restart": _one(f"{_CLI}.service_orders:Restarted"),
    "service delete": _one(f"{_CLI}.service_orders:Deleted"),
    "profile measure": _one(f"{_CLI}.profile:MeasuredFile"),
    "profile show": _many("slicewise.cluster.language.measurements:Measurement"),
    "key create": _one(f"{_CLI}.keys:CreatedKey"),
    "key list": _many("slicewise.cluster.rpc.key_messages:KeyView"),
    "mig costs": _many(f"{_VIEWS}.headroom:ProfileCost"),
    "mig profiles": _one(f"{_COMMANDS}.mig:ShownBoards"),
    "mig layouts": (Document(("slicewise.cluster.language.gpus.layouts:Placement",), depth=2),),
    "mig import": _many(f"{_COMMANDS}.mig:ModelLayout"),
    "mig instances": _one(f"{_VIEWS}.instances:ChosenInstances"),
    "report": _one("slicewise.slurm_plugin.rules.pages.month:MonthReport"),
    "ledger statement": (
        *_one(f"{_VIEWS}.ledger:StatementShown"),
        *_one(f"{_VIEWS}.ledger:JournalShown"),
        *_many(f"{_VIEWS}.focus:FocusRow"),
    ),
    "ledger balance": _many("slicewise.slurm_plugin.rules.accounting.types:BalanceLine"),
    "ledger verify": _one(f"{_VIEWS}.ledger:TimedVerification"),
    "ledger db current": _one(f"{_COMMANDS}.ledger_db:DatabaseRevisions"),
    "ledger db backup": _one("slicewise.slurm_plugin.rules.accounting.types:BackupRecord"),
    "ledger db check-backup": _one("slicewise.slurm_plugin.rules.accounting.types:BackupRecord"),
    "tenant create": _one(f"{_SITE}:TenantAddedJson"),
    "tenant move": _one(f"{_SITE}:TenantAddedJson"),
    "tenant list": _many(*_TENANT),
    "tenant show": (*_one(*_DETAILS), *_many(*_TENANT)),
    "tenant delete": _one(f"{_SITE}:TenantRemovedJson"),
    "tenant import": _many("slicewise.slurm_plugin.rules.quota.accounts:TakeOver"),
    "tenant check": _many("slicewise.slurm_plugin.rules.quota.accounts:AccountDifference"),
    "tenant-quota set": _one(_CHANGE, f"{_SITE}:QuotaOutcomeJson"),
    "tenant-quota history": _many(_CHANGE),
    "tenant-quota apply": _one(f"{_SITE}:QuotaPlanJson"),
    "tenant-quota loans": (
        *_many("slicewise.slurm_plugin.rules.quota.loan_lines:LoanLine"),
        *_many(f"{_QUOTA}:Loan", f"{_SITE}:LoanChangeJson"),
    ),
    "tenant-quota calendar create": _one(f"{_SITE}:NewWindowJson"),
    "tenant-quota calendar list": (
        *_many(f"{_SITE}:ShownWindowJson"),
        *_many(f"{_SITE}:PastWindowJson"),
    ),
    "tenant-quota calendar delete": _one(f"{_SITE}:WindowJson"),
    "budget set": _one(f"{_VIEWS}.budgets:SetBudget"),
    "budget delete": _one(f"{_VIEWS}.budgets:Payer"),
    "budget show": _many("slicewise.slurm_plugin.rules.accounting.overview:BudgetStatus"),
    "budget grant": _one(f"{_VIEWS}.budgets:BookedEntry"),
    "budget adjust": _one(f"{_VIEWS}.budgets:BookedEntry"),
    "budget history": _many(f"{_VIEWS}.budgets:Event"),
    "simulate": _one(
        "slicewise.simulation.rules.runs.figures:SimulationResult",
        "slicewise.simulation.rules.report.documents:ComparedJson",
    ),
    "compile": (
        *_one(f"{_COMMANDS}.compile:LimitsSet"),
        *_one(f"{_COMMANDS}.compile:LimitsPlanned"),
        *_many("builtins:str"),
    ),
    "uninstall": (
        *_one("slicewise.slurm_plugin.quota_cycle.uninstall:Undone"),
        *_one(f"{_COMMANDS}.compile:UninstallPlanned"),
    ),
    "node probe": _one(f"{_COMMANDS}.node:ProbedNode"),
    "node gres": _one(f"{_COMMANDS}.node:NodeLines"),
    "doctor": _one(f"{_CLI}.doctor:Findings"),
    "repartition run": (
        *_one(f"{_COMMANDS}.repartition:RepartitionsDone"),
        *_one(f"{_COMMANDS}.repartition:RepartitionsDry"),
        *_one(f"{_COMMANDS}.repartition:RepartitionsBusy"),
    ),
    "repartition history": _many(_REPARTITION),
    "repartition show": _one(_REPARTITION),
    "repartition close": _one(_REPARTITION),
    "repartition survey": _one(f"{_COMMANDS}.repartition:SurveyedNodes"),
    "snapshot": _one(f"{_COMMANDS}.snapshot:WrittenSnapshot"),
    "observe": _one("slicewise.slurm_plugin.rules.explain.observed:ObservedReport"),
    "rebalance": (
        *_one(_RUN),
        *_one(f"{_COMMANDS}.rebalance:PlannedRun"),
        *_one(f"{_COMMANDS}.rebalance:BusyRun"),
    ),
    "rebalance history": _many(_RUN),
    "rebalance show": _one(_RUN),
    "admission adopt": _one(f"{_COMMANDS}.adopt:AdoptedJobs"),
    "admission install": _one(f"{_COMMANDS}.admission:LuaTrial"),
    "sandbox status": _one("slicewise.sandbox.host.status:SandboxJson"),
    "admission status": _one(f"{_VIEWS}.admission:AdmissionStatus"),
}
"""The documents that each command may print, one of them at a time.

``service status --watch`` and ``service logs`` print one on each line (NDJSON).
"""


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON schema of what a command prints; KeyError if it prints no JSON."""
    definitions: dict[str, Any] = {}
    found = [_document(one, definitions) for one in OUTPUTS[command]]
    return {
        "$schema": DIALECT,
        "$id": f"urn:slicewise:json:{JSON_VERSION}:{command.replace(' ', '-')}",
        "title": f"slicewise {command} --json",
        **(found[0] if len(found) == 1 else {"anyOf": found}),
        **({"$defs": definitions} if definitions else {}),
    }


def _document(document: Document, definitions: dict[str, Any]) -> dict[str, Any]:
    parts = [_part(place, definitions) for place in document.parts]
    schema = parts[0]
    if len(parts) > 1:
        schema = {
            "type": "object",
            "properties": {key: one for part in parts for key, one in part["properties"].items()},
            "required": list(dict.fromkeys(key for part in parts for key in part["required"])),
        }
    schema = {key: value for key, value in schema.items() if key != "title"}
    for _ in range(document.depth):
        schema = {"type": "array", "items": schema}
    return schema


def _part(place: str, definitions: dict[str, Any]) -> dict[str, Any]:
    # Imported here: pydantic's adapters, and the types, belong to many commands.
    from pydantic import TypeAdapter  # noqa: PLC0415

    module, _, name = place.partition(":")
    schema = TypeAdapter(getattr(import_module(module), name)).json_schema(mode="serialization")
    definitions.update(schema.pop("$defs", {}))
    for one in (schema, *definitions.values()):
        if "properties" in one:
            # asdict and model_dump write every field, also those that have a default.
            one["required"] = list(one["properties"])
    return schema
