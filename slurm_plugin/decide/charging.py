"""Charge each run exactly what Slurm allotted: reserve at its start, settle at its end."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NewType

from cluster.billing import MILLISLICES, BillingUnit
from cluster.jobs import JobView, RunRecord
from cluster.units import Millislices, MillisliceSeconds
from slurm_plugin.decide.gone import LIVE, live_runs
from slurm_plugin.decide.model import (
    Charge,
    Charging,
    Observation,
    Reservation,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)

UNLIMITED_RESERVE_S = 30 * 86_400
"""What a run without a time limit reserves; one that outlives it is extended when it ends."""

MOST_RESERVED_S = 366 * 86_400
"""No run reserves more, whatever its time limit: Slurm takes 68 years, and the sums of an account
must hold whatever somebody starts and cancels. One that outlives it is extended when it ends."""

ACCOUNTING_DELAY_S = 600
"""How late slurmdbd may learn of a run's end; ``next_watermark_s`` waits that long."""


@dataclass(frozen=True)
class Tariff:
    """What is charged, and to whom: GPUs on managed partitions, by type.

    Attributes:
        costs: millislices of one instance by GRES type (``Settings.costs``).
        payers: whose budget pays for a tenant's runs; a tenant that is not in it pays itself. A run
            keeps the payer that it was reserved with.
        node_failure: who bears a run that its node's failure ended. "operator": all of it is
            waived.
        billing: in what Slurm counts; nothing is charged by it.
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
class _Sighting:
    """A run as Slurm shows it; ``end_s`` is None while it runs."""

    run: Run
    limit_s: _Seconds
    end_s: int | None
    billing: int | None
    waived: bool = False


def charge(
    tariff: Tariff,
    jobs: Iterable[JobView],
    records: Iterable[RunRecord],
    reservations: Iterable[Reservation],
    lost: Mapping[RunKey, int],
) -> Charging:
    """The charges that bring the ledger up to what Slurm shows.

    ``jobs`` is what runs now, ``records`` what accounting knows (may be empty: then nothing is
    settled), ``reservations`` all open ones, ``lost`` the ends of those that accounting has lost
    unless it shows them now. A run whose end accounting shows is settled even if its job still
    seems to run. A job that gives nodes back goes on: it is charged to its end for what it began
    with. What the ledger has already is decided again and changes nothing: see
    ``Charge.after``.
    """
    jobs, held = tuple(jobs), {reservation.key: reservation for reservation in reservations}
    ended = _ended(tariff, _whole_runs(tariff.costs, jobs, records, held), held)
    missed = {
        key: _bounded(held[key], end_s)
        for key, end_s in lost.items()
        if key in held and key not in ended
    }
    sightings = _live(tariff, jobs) | ended | _missed(held, missed)
    charges: list[Charge] = []
    observations: list[Observation] = []
    for key in sorted(sightings):
        transfers = _transfers(sightings[key], held.get(key))
        if transfers:
            charges.append(_charge(sightings[key], held.get(key), transfers))
            observations.extend(_observations(sightings[key], held.get(key), tariff.billing))
    observations.extend(_lost(held[key], missed[key]) for key in sorted(missed))
    types = frozenset(kind for seen in sightings.values() for kind in seen.run.gres)
    return Charging(tuple(charges), tuple(observations), types - tariff.costs.keys())


def _live(tariff: Tariff, jobs: Iterable[JobView]) -> dict[RunKey, _Sighting]:
    """What can't be read reserves nothing, and keeps what it has: accounting says in the end."""
    sightings = (
        _sighting(tariff, job, job.start_s, _task(job), None)
        for job in jobs
        if job.state in LIVE and job.start_s is not None and job.partition in tariff.partitions
        if not job.is_doubtful and "time_limit_s" not in job.unread
    )
    return {found.run.key: found for found in sightings if found.run.gres}


def _whole_runs(
    costs: Mapping[str, Millislices],
    jobs: Iterable[JobView],
    records: Iterable[RunRecord],
    held: Mapping[RunKey, Reservation],
) -> Iterator[RunRecord]:
    """Records of runs, those of which a job gave nodes back put together.

    Then accounting ends a record and begins another one for the rest, which starts when the run
    did, or, as versions differ, where the first one ended. The last one comes, with the start of
    the run and the GPUs of its largest part: what was given back is charged to the end.
    """
    records = tuple(records)
    parts: dict[int, list[RunRecord]] = {}
    for record in records:
        if record.state == _RESIZING:
            parts.setdefault(record.job_id, []).append(record)
    others = [record for record in records if record.state != _RESIZING]
    known = {(record.job_id, record.start_s) for record in others}
    # Of a run whose first record ended long ago: slurmctld still knows its start.
    began_s = {job.job_id: job.start_s for job in jobs}
    open_runs = {(key.job_id, key.start_s) for key in held} - known
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
        whole = [record, *(part for part in own if start_s <= part.start_s <= record.start_s)]
        largest = max(whole, key=lambda part: run_cost(part.gpus, costs))
        yield replace(record, start_s=start_s, tres=largest.tres)


def _ended(
    tariff: Tariff, records: Iterable[RunRecord], held: Mapping[RunKey, Reservation]
) -> dict[RunKey, _Sighting]:
    """Runs that accounting shows as ended: those on managed partitions, and all that are held."""
    found: dict[RunKey, _Sighting] = {}
    for record in sorted(records, key=lambda record: record.end_s or 0):
        key = RunKey(tariff.cluster, record.job_id, record.start_s)
        managed = record.partition in tariff.partitions and record.gpus
        if record.end_s is not None and (managed or key in held):
            # The later end stands: of two runs that start in one second the first has no length.
            seen = _sighting(tariff, record, record.start_s, record.task, record.end_s)
            failed = tariff.node_failure == "operator" and record.state in _NODE_FAILURES
            found[key] = replace(seen, waived=failed)
    return found


def _missed(
    held: Mapping[RunKey, Reservation], ends: Mapping[RunKey, int]
) -> dict[RunKey, _Sighting]:
    return {key: _Sighting(held[key], _Seconds(0), end_s, None) for key, end_s in ends.items()}


def _bounded(held: Reservation, end_s: int) -> int:
    """At most to the time limit known last: the daemon itself may have been away for long."""
    covered = held.posted_millislice_s + held.reserved_millislice_s
    return min(end_s, held.key.start_s + covered // held.cost_millislices)


def _lost(run: Run, end_s: int) -> Observation:
    return Observation(
        run.key,
        f"accounting does not show how run {run.task} of {run.tenant}, started at "
        f"{run.key.start_s}, ended: charged up to {end_s}, by when it had; sacct may show less",
    )


def _sighting(
    tariff: Tariff, seen: JobView | RunRecord, start_s: int, task: str, end_s: int | None
) -> _Sighting:
    gres = seen.gpus
    run = Run(
        key=RunKey(tariff.cluster, seen.job_id, start_s),
        tenant=seen.account,
        user=seen.user,
        task=task,
        gres=gres,
        cost_millislices=run_cost(gres, tariff.costs),
        payer=tariff.payers.get(seen.account, seen.account),
    )
    wanted_s = UNLIMITED_RESERVE_S if seen.time_limit_s is None else seen.time_limit_s
    limit_s = min(max(1, wanted_s), MOST_RESERVED_S)
    billing = seen.tres.get("billing")
    return _Sighting(run, _Seconds(limit_s), end_s, None if billing is None else int(billing))


def _task(job: JobView) -> str:
    if job.array_job_id is None or job.task_index is None:
        return str(job.job_id)
    return f"{job.array_job_id}_{job.task_index}"


def run_cost(gres: Mapping[str, int], costs: Mapping[str, Millislices]) -> Millislices:
    """Millislices of GPU instances by type; a type without a known cost counts nothing."""
    # Of each job, several times a round: without a generator it takes half as long.
    total = 0
    for kind, count in gres.items():
        total += count * costs.get(kind, 0)
    return Millislices(total)


def _charge(seen: _Sighting, held: Reservation | None, transfers: tuple[Transfer, ...]) -> Charge:
    return Charge(held or seen.run, held.transfers if held else 0, transfers)


def _transfers(seen: _Sighting, held: Reservation | None) -> tuple[Transfer, ...]:
    """Reserve or extend up to the time limit; with an end, settle.

    A reservation keeps the cost it was opened with, though its job gives nodes back or the settings
    change.
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
    """Part of the use may be posted already, or even more than it: accounting may back-date."""
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
    """Of an amount above zero."""
    return Transfer(kind, MillisliceSeconds(amount), until_s)


def _observations(
    seen: _Sighting, held: Reservation | None, billing: BillingUnit
) -> Iterable[Observation]:
    """Whatever does not fit together; once when a run is first seen and once when it ends."""
    run = seen.run
    due = billing.held(run.cost_millislices)
    if seen.billing is not None and seen.billing != due:
        yield Observation(
            run.key,
            f"Slurm bills {seen.billing}, the settings say {due} for {run.cost_millislices} "
            "millislices: check the partition's TRESBillingWeights, unless the run began before "
            "they were changed",
        )
    # Of a short run accounting learns the end first, its GPUs up to some seconds later.
    if held is not None and run.gres and dict(held.gres) != dict(run.gres):
        yield Observation(
            run.key, f"reserved for {dict(held.gres)}, but accounting shows {dict(run.gres)}"
        )


def known_end_s(charge: Charge) -> int | None:
    """When the run ended that it settles; None if it only reserves."""
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
    """Up to when every run's end is in the ledger: the ``since`` of the next look at accounting.

    ``now_s`` is when ``jobs`` were looked at, ``reservations`` are those still open afterwards. It
    waits for the ends of reserved runs that no longer run, and ``ACCOUNTING_DELAY_S`` for runs too
    short to have been seen. It never goes back: whatever ran at one look ends after it. The second
    itself is included: a run may end in the second of its start. ``refused_ends_s`` are those of
    runs whose charge the ledger refused: accounting shall show them again.
    """
    live = live_runs(jobs)
    missing = (
        reservation.key.start_s - 1
        for reservation in reservations
        if (reservation.key.job_id, reservation.key.start_s) not in live
    )
    refused = (end_s - 1 for end_s in refused_ends_s)
    return max(previous_s, min(now_s - ACCOUNTING_DELAY_S, *missing, *refused, now_s))
