"""Shows a service's file to users and as JSON: its schema, and what applying it would do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.language.units import counted, slices_words
from slicewise.cluster.runtime.console import FittingTable, column
from slicewise.cluster.slurm.sbatch import Submitted
from slicewise.launcher.rules.engines.model_files import ModelNeeds, listed
from slicewise.launcher.rules.services.apply_plan import ApplyPlan, KeyChange, ReplicaCost


@dataclass(frozen=True, kw_only=True)
class PlannedService(ApplyPlan):
    """What ``service apply`` would do with a service, at which address."""

    service: str
    url: str


@dataclass(frozen=True)
class FileKey:
    """A key of the service file; ``default`` is null for a required one."""

    key: str
    type: str
    required: bool
    default: str | int | float | bool | None
    meaning: str | None


def plan_text(spec: ServiceSpec, plan: ApplyPlan, url: str) -> RenderableType:
    """Return what would be done, the changes as a diff, and notes."""
    notes = (Text(note, style="yellow") for note in plan.notes)
    lines = [line for change in plan.changes for line in _diff(change)]
    if any(change.key == "model_digest" for change in plan.changes):
        lines.append(Text("  The model repository has other files than the service."))
    would = Text(f"{spec.tenant}/{spec.name} {_would(spec, plan, url)}")
    needs = () if plan.model is None else (Text(_needs_text(plan.model)),)
    replica = plan.replica
    costs = () if replica is None else (Text(_replica_text(replica, spec.max_replicas)),)
    return Group(would, *lines, *costs, *needs, *notes)


def _replica_text(replica: ReplicaCost, most: int) -> str:
    """``replica: 1g.10gb of H100, 1 slice; EUR 0.12 an hour now, 2.40 a day while it runs, 8 of
    them 19.20``.
    """
    model = "" if replica.gpu_model is None else f" of {replica.gpu_model}"
    has = f"replica: {replica.shape.words}{model}, {slices_words(replica.cost_millislices)}"
    hour, day = replica.price(replica.slice_hour_price), replica.price(replica.slice_day_price)
    whole = replica.price(replica.slice_day_price, most)
    if hour is None or day is None or whole is None:
        return has
    words = f"{replica.currency} {hour:.2f} an hour now, {day:.2f} a day while it runs"
    return f"{has}; {words}" + (f", {most} of them {whole:.2f}" if most > 1 else "")


def _needs_text(needs: ModelNeeds) -> str:
    instances = counted(needs.instances, "instance")
    versions = "version" if len(needs.versions) == 1 else "versions"
    facts = (
        f"backend {needs.backend}" if needs.backend else "",
        f"{instances} ({', '.join(needs.kinds)})" if needs.kinds else instances,
        f"{versions} {', '.join(map(str, needs.versions))}" if needs.versions else "",
        f"files {listed(needs.files)}" if needs.files else "",
        f"runs {', '.join(needs.parts)}" if needs.parts else "",
        f"inputs {', '.join(needs.inputs)}" if needs.inputs else "",
        f"outputs {', '.join(needs.outputs)}" if needs.outputs else "",
        f"batches of up to {needs.batch}" if needs.batch > 1 else "",
        "keeps state of sequences" if needs.has_sequences else "",
        "decoupled: answers by streams only" if needs.is_decoupled else "",
    )
    return f"model {needs.name}: {'; '.join(filter(None, facts))}"


def _would(spec: ServiceSpec, plan: ApplyPlan, url: str) -> str:
    match plan.action:
        case "create":
            return (
                f"would be new: {spec.min_replicas} to {spec.max_replicas} replicas; "
                f"its address: {url}"
            )
        case "roll over":
            return f"would roll over from array job {plan.array_job_id}"
        case "nothing":
            return f"is as the file says: array job {plan.array_job_id}"


def _diff(change: KeyChange) -> tuple[Text, ...]:
    sides = (("-", change.before, "red"), ("+", change.after, "green"))
    return tuple(
        Text(f"  {sign} {change.key} = {value}", style=style)
        for sign, value, style in sides
        if value is not None
    )


def applied(spec: ServiceSpec, plan: ApplyPlan, submitted: Submitted | None, url: str) -> str:
    """Return what was done, in one line."""
    service = f"{spec.tenant}/{spec.name}"
    if submitted is None:
        return (
            f"{service} is as the file says: array job {plan.array_job_id}. "
            "Nothing was submitted; --force rolls it over anyway."
        )
    if plan.action == "create":
        return f"{service} is array job {submitted.job_id}; its address: {url}"
    return (
        f"{service} rolls over from array job {plan.array_job_id} to {submitted.job_id}; "
        f"its address stays: {url}"
    )


def schema_rows() -> tuple[FileKey, ...]:
    """Return every key of a service file: its type, default and meaning."""
    properties = ServiceSpec.model_json_schema()["properties"]
    return tuple(
        FileKey(
            key,
            _type(properties[key]),
            field.is_required(),
            None if field.is_required() or field.default == () else field.default,
            field.description,
        )
        for key, field in ServiceSpec.model_fields.items()
    )


def _type(schema: Mapping[str, Any]) -> str:
    kinds = [str(option["type"]) for option in schema.get("anyOf", (schema,)) if "type" in option]
    return " or ".join(kind for kind in kinds if kind != "null")


def schema_table() -> FittingTable:
    """Return the schema as a table for users."""
    rows = schema_rows()
    defaults = ("required" if row.required else _default(row.default) for row in rows)
    return FittingTable(
        (
            column("key", (row.key for row in rows)),
            column("type", (row.type for row in rows)),
            column("default", defaults),
            column("meaning", (row.meaning for row in rows), folds=True),
        )
    )


def _default(value: object) -> str:
    return "–" if value is None else str(value)
