"""Charges each run exactly what Slurm allotted: reserves at its start, settles at its end."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NewType

from slicewise.cluster.language.billing import MILLISLICES, BillingUnit
from slicewise.cluster.language.gres import ALL_GPUS, tres_name
from slicewise.cluster.language.jobs import WAITING, JobView, RunRecord
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.accounting.lost_runs import LIVE, live_runs
from slicewise.slurm_plugin.rules.accounting.types import (
    Anomaly,
    Charge,
    Charging,
    Reservation,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder

UNLIMITED_RESERVE_S = 30 * 86_400
"""Seconds that a run without a time limit reserves; a longer run is extended when it ends."""

MOST_RESERVED_S = 366 * 86_400
"""The most seconds that a run reserves. Slurm accepts time limits of 68 years, and an account's
sums must not overflow whatever users start and cancel. A longer run is extended when it ends."""

ACCOUNTING_DELAY_S = 600
"""Seconds by which slurmdbd may learn late of a run's end; ``next_watermark_s`` waits for them."""


@dataclass(frozen=True)
class Rates:
    """What GPUs on managed partitions cost, and which budgets pay for them.

    Attributes:
        costs: millislices of one instance by GRES type (``Settings.costs``).
        payers: the tenant with the budget that pays, by tenant; a tenant that is missing pays
            itself. An account's run in the QOS of a tenant is paid for as that tenant's. A run
            keeps the payer with which it was reserved.
        node_failure: who bears the cost of a run that ended because its node failed; with
            "operator" all of the cost is waived.
        billing: the unit of Slurm's ``billing``, which is only compared with the charge.
    """

    cluster: str
    partitions: frozenset[str]
    costs: Mapping[str, Millislices] = field(hash=False)
    payers: Mapping[str, str] = field(hash=False)
    node_failure: Literal["tenant", "operator"]
    billing: BillingUnit = MILLISLICES


_RESIZING = "RESIZING"
_NODE_FAILURES = frozenset({"NODE_FAIL", "BOOT_FAIL"})

_Seconds = NewType("_Seconds", int)


@dataclass(frozen=True)
class _ShownRun:
    """A run as Slurm shows it; ``end_s`` is None while the run goes on."""

    run: Run
    limit_s: _Seconds
    end_s: int | None
    billing: int | None
    waived: bool = False


def charge(
    rates: Rates,
    jobs: Iterable[JobView],
    records: Iterable[RunRecord],
    reservations: Iterable[Reservation],
    lost: Mapping[RunKey, int],
) -> Charging:
    """Decide the charges that bring the ledger up to what Slurm shows.

    ``jobs`` are Slurm's current jobs, and ``records`` accounting's runs; without records only lost
    runs are settled. ``reservations`` are all open reservations. ``lost`` has the ends of reserved
    runs that accounting has lost, which count unless ``records`` show the ends after all.

    A run is settled if accounting shows its end, even if its job still seems to run. A job that
    gives nodes back continues, and is charged to its end for the GPUs with which it began. A charge
    that the ledger already has is decided again without effect (see ``Charge.after``).

    Accounting names a type of GPUs only if it knew the type when the run began. A run whose types
    it does not name is charged for those that slurmctld showed while it knew the job.
    """
    jobs, held = tuple(jobs), {reservation.key: reservation for reservation in reservations}
    records = tuple(_typed(rates.cluster, jobs, records, held))
    ended = _ended(rates, _whole_runs(rates.costs, jobs, records, held), held)
    missed = {
        key: _bounded(held[key], end_s)
        for key, end_s in lost.items()
        if key in held and key not in ended
    }
    sightings = _live(rates, jobs) | ended | _missed(held, missed)
    charges: list[Charge] = []
    observations: list[Anomaly] = []
    for key in sorted(sightings):
        transfers = _transfers(sightings[key], held.get(key))
        if transfers:
            charges.append(_charge(sightings[key], held.get(key), transfers))
            observations.extend(_observations(sightings[key], held.get(key), rates.billing))
    observations.extend(_lost(held[key], missed[key]) for key in sorted(missed))
    types = frozenset(gres_type for seen in sightings.values() for gres_type in seen.run.gres)
    unpriced, untyped = types - rates.costs.keys(), _untyped(rates, jobs, records, held)
    return Charging(tuple(charges), tuple(observations), unpriced, untyped)


def _typed(
    cluster: str,
    jobs: Iterable[JobView],
    records: Iterable[RunRecord],
    held: Mapping[RunKey, Reservation],
) -> Iterator[RunRecord]:
    """Yield accounting's records with the types of GPUs that only slurmctld has named."""
    shown = {
        RunKey(cluster, job.job_id, job.start_s): job.gpus
        for job in jobs
        if job.start_s is not None and job.unnamed and job.state not in WAITING
    }
    for record in records:
        key = RunKey(cluster, record.job_id, record.start_s)
        gpus: Mapping[str, int] = {}
        if record.untyped_gpus or (ALL_GPUS not in record.tres and key not in held):
            gpus = held[key].gres if key in held else shown.get(key, {})
        named = {tres_name(gres_type): str(count) for gres_type, count in gpus.items()}
        # What was billed says nothing: Slurm did not know the types.
        named_again = {name: value for name, value in record.tres.items() if name != "billing"}
        yield replace(record, tres={**named, **named_again}) if named else record


def _untyped(
    rates: Rates,
    jobs: Iterable[JobView],
    records: Iterable[RunRecord],
    held: Mapping[RunKey, Reservation],
) -> frozenset[RunKey]:
    """Return the runs on managed partitions with GPUs whose type nothing says."""
    live = (job for job in jobs if job.state in LIVE and not job.is_doubtful)
    ended = (record for record in records if record.end_s is not None)
    several: Iterable[JobView | RunRecord] = (*live, *ended)
    keys = (
        RunKey(rates.cluster, record.job_id, record.start_s)
        for record in several
        if record.untyped_gpus
        and record.start_s is not None
        and record.partition in rates.partitions
    )
    return frozenset(keys) - held.keys()


def _live(rates: Rates, jobs: Iterable[JobView]) -> dict[RunKey, _ShownRun]:
    """Return the runs of current jobs on managed partitions.

    Jobs with unreadable records are left out: nothing is reserved for them, and they keep their
    reservations, because accounting settles these in the end.
    """
    sightings = (
        _sighting(rates, job, job.start_s, job.task, None)
        for job in jobs
        if job.state in LIVE and job.start_s is not None and job.partition in rates.partitions
        if not job.is_doubtful and "time_limit_s" not in job.unread
    )
    return {sighting.run.key: sighting for sighting in sightings if sighting.run.gres}


def _whole_runs(
    costs: Mapping[str, Millislices],
    jobs: Iterable[JobView],
    records: Iterable[RunRecord],
    held: Mapping[RunKey, Reservation],
) -> Iterator[RunRecord]:
    """Yield accounting's records with the parts of each run joined into one record.

    When a job gives nodes back, accounting ends its record and begins another one for the rest.
    Depending on Slurm's version, the new record starts when the run did, or where the first record
    ended. The last record is yielded, with the start of the run and the GPUs of its largest part:
    what was given back is charged to the end.
    """
    records = tuple(records)
    parts: dict[int, list[RunRecord]] = {}
    for record in records:
        if record.state == _RESIZING:
            parts.setdefault(record.job_id, []).append(record)
    others = [record for record in records if record.state != _RESIZING]
    other_runs = {(record.job_id, record.start_s) for record in others}
    # If a run's first record ended too long ago to be here, slurmctld still knows its start.
    began_s = {job.job_id: job.start_s for job in jobs}
    open_runs = {(key.job_id, key.start_s) for key in held} - other_runs
    for record in others:
        own = parts.get(record.job_id, [])
        start_s = record.start_s
        for part in sorted(own, key=lambda part: part.start_s, reverse=True):
            start_s = part.start_s if part.end_s == start_s else start_s
        first_s = began_s.get(record.job_id)
        if first_s is not None and first_s < start_s and (record.job_id, first_s) in open_runs:
            start_s = first_s
        if not own and start_s == record.start_s:
            yield record
            continue
        whole = [*(part for part in own if start_s <= part.start_s <= record.start_s), record]
        largest = max(whole, key=lambda part: run_cost(part.gpus, costs))
        yield replace(record, start_s=start_s, tres=largest.tres)


def _ended(
    rates: Rates, records: Iterable[RunRecord], held: Mapping[RunKey, Reservation]
) -> dict[RunKey, _ShownRun]:
    """Return the runs that accounting shows as ended, on managed partitions or with reservations.

    ``held`` are the open reservations.
    """
    shown_runs: dict[RunKey, _ShownRun] = {}
    for record in sorted(records, key=lambda record: record.end_s or 0):
        key = RunKey(rates.cluster, record.job_id, record.start_s)
        managed = record.partition in rates.partitions and record.gpus
        if record.end_s is not None and (managed or key in held):
            # If two runs start in the same second, the first one has no length: the later end wins.
            seen = _sighting(rates, record, record.start_s, record.task, record.end_s)
            failed = rates.node_failure == "operator" and record.state in _NODE_FAILURES
            shown_runs[key] = replace(seen, waived=failed)
    return shown_runs


def _missed(
    held: Mapping[RunKey, Reservation], ends: Mapping[RunKey, int]
) -> dict[RunKey, _ShownRun]:
    return {key: _ShownRun(held[key], _Seconds(0), end_s, None) for key, end_s in ends.items()}


def _bounded(held: Reservation, end_s: int) -> int:
    """Limit a lost run's end to the last known time limit: the daemon may have been away long."""
    covered = held.posted_millislice_s + held.reserved_millislice_s
    return min(end_s, held.key.start_s + covered // held.cost_millislices)


def _lost(run: Run, end_s: int) -> Anomaly:
    return Anomaly(
        run.key,
        f"accounting does not show how run {run.task} of {run.tenant}, started at "
        f"{run.key.start_s}, ended: charged up to {end_s}, when it had ended at the latest; sacct"
        " may show less",
    )


def _sighting(
    rates: Rates, seen: JobView | RunRecord, start_s: int, task: str, end_s: int | None
) -> _ShownRun:
    gres, counts_for = seen.gpus, holder(seen.account, seen.qos)
    run = Run(
        key=RunKey(rates.cluster, seen.job_id, start_s),
        tenant=seen.account,
        user=seen.user,
        task=task,
        gres=gres,
        cost_millislices=run_cost(gres, rates.costs),
        payer=rates.payers.get(counts_for, counts_for),
    )
    wanted_s = UNLIMITED_RESERVE_S if seen.time_limit_s is None else seen.time_limit_s
    limit_s = min(max(1, wanted_s), MOST_RESERVED_S)
    knew_types = not (isinstance(seen, JobView) and seen.unnamed)
    billing = seen.tres.get("billing") if knew_types else None
    return _ShownRun(run, _Seconds(limit_s), end_s, None if billing is None else int(billing))


def _charge(seen: _ShownRun, held: Reservation | None, transfers: tuple[Transfer, ...]) -> Charge:
    return Charge(held or seen.run, held.transfers if held else 0, transfers)


def _transfers(seen: _ShownRun, held: Reservation | None) -> tuple[Transfer, ...]:
    """Reserve or extend a run up to its time limit; if the run has ended, settle it.

    A reservation keeps the cost with which it was opened, even if its job gives nodes back or the
    settings change.
    """
    cost = held.cost_millislices if held else seen.run.cost_millislices
    if not cost:
        return ()
    start_s = seen.run.key.start_s
    posted = held.posted_millislice_s if held else 0
    covered = posted + (held.reserved_millislice_s if held else 0)
    transfers: list[Transfer] = []

    def cover(seconds: int) -> None:
        nonlocal covered
        if cost * seconds > covered:
            kind = TransferKind.EXTEND if covered else TransferKind.RESERVE
            transfers.append(transfer(kind, cost * seconds - covered, start_s + seconds))
            covered = cost * seconds

    if held is None or seen.end_s is None:
        cover(seen.limit_s)
    if seen.end_s is not None:
        seconds = max(0, seen.end_s - start_s)
        cover(seconds)
        settle = _waiver if seen.waived else _settlement
        amounts = settle(cost * seconds, posted, covered)
        transfers.extend(transfer(kind, amount, seen.end_s) for kind, amount in amounts if amount)
    return tuple(transfers)


_Amounts = tuple[tuple[TransferKind, int], ...]


def _settlement(used: int, posted: int, covered: int) -> _Amounts:
    """Post the rest of the use and void the rest of the reservation.

    More than the use may already be posted, because accounting may back-date an end. The excess is
    then reversed.
    """
    return (
        (TransferKind.POST, max(0, used - posted)),
        (TransferKind.REVERSE, max(0, posted - used)),
        (TransferKind.VOID, covered - used),
    )


def _waiver(used: int, posted: int, covered: int) -> _Amounts:
    return (
        (TransferKind.REVERSE, posted),
        (TransferKind.WAIVE, used),
        (TransferKind.VOID, covered),
    )


def transfer(kind: TransferKind, amount: int, until_s: int) -> Transfer:
    """Build a transfer. ``amount`` must be positive."""
    return Transfer(kind, amount, until_s)


def _observations(
    seen: _ShownRun, held: Reservation | None, billing: BillingUnit
) -> Iterable[Anomaly]:
    """Yield what does not fit together when a run is charged, at its start, extension or end."""
    run = seen.run
    due = billing.held(run.cost_millislices)
    # No GPUs are no contradiction: accounting learns a short run's GPUs some seconds after its end.
    if seen.billing is not None and seen.billing != due and run.gres:
        yield Anomaly(
            run.key,
            f"Slurm bills {seen.billing}, the settings say {due} for {run.cost_millislices} "
            "millislices: check the partition's TRESBillingWeights, unless the run began before "
            "they were changed",
        )
    if held is not None and run.gres and dict(held.gres) != dict(run.gres):
        yield Anomaly(
            run.key, f"reserved for {dict(held.gres)}, but accounting shows {dict(run.gres)}"
        )


def known_end_s(charge: Charge) -> int | None:
    """Return the end of the run that the charge settles; None if the charge only reserves."""
    last = charge.transfers[-1]
    reserves = last.kind in (TransferKind.RESERVE, TransferKind.EXTEND)
    return None if reserves else last.until_s


def next_watermark_s(
    previous_s: int,
    now_s: int,
    jobs: Iterable[JobView],
    reservations: Iterable[Reservation],
    refused_ends_s: Iterable[int] = (),
) -> int:
    """Return the time up to which the ledger has every run's end: the next query's ``since``.

    ``now_s`` is when ``jobs`` were read, and ``reservations`` are those still open after charging.
    The watermark waits for the ends of reserved runs that no longer run, and for
    ``ACCOUNTING_DELAY_S`` because of runs too short to have been seen. It never goes back, because
    a run that was running when ``jobs`` were read ends after that. The start's second itself is
    included, because a run may end in the second in which it starts. ``refused_ends_s`` are the
    ends of runs whose charges the ledger refused, so that accounting shows these runs again.
    """
    live = live_runs(jobs)
    missing = (
        reservation.key.start_s - 1
        for reservation in reservations
        if (reservation.key.job_id, reservation.key.start_s) not in live
    )
    refused = (end_s - 1 for end_s in refused_ends_s)
    return max(previous_s, min(now_s - ACCOUNTING_DELAY_S, *missing, *refused, now_s))
