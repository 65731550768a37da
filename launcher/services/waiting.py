"""Decides when a service is as its user waits for it to be, and what is said of it meanwhile."""

from dataclasses import dataclass, replace
from enum import StrEnum

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError
from slicewise.launcher.rules.turn.backoff import FAILING
from slicewise.launcher.services.overview import ServiceObservation
from slicewise.launcher.services.service_file import logs_of


class WaitGoal(StrEnum):
    """What a command waits for."""

    READY = "ready"
    """A replica serves, at least ``min_replicas`` do, and no outdated one is left."""
    ASLEEP = "asleep"
    """No replica runs, and none is wanted."""
    FAILING = "failing"
    """Starts fail."""
    GONE = "gone"
    """There is no service of that name."""


@dataclass(frozen=True)
class Waiting:
    """A wait for a service.

    Attributes:
        service: ``tenant/name``.
        goal: what is waited for.
        array_job_id: the generation that is waited for; an older one does not count.
        may_sleep: whether a service that needs no replica now counts as ready.
        is_woken: whether the command itself has woken the service, so that a start is tried now.
        forgiven: starts that failed before it, which are no failures of that start; None before
            they are known, 0 once they are seen to be forgotten.
        is_seen: whether that generation has been seen.
    """

    service: str
    goal: WaitGoal
    array_job_id: int = 0
    may_sleep: bool = False
    is_woken: bool = False
    forgiven: int | None = 0
    is_seen: bool = False


def is_reached(waiting: Waiting, seen: ServiceObservation | None) -> bool:
    """Whether the service, None if there is none, is as it is waited for.

    Raises OutsideError (SW-SERVICE-FAILING) if it will not become ready: its starts fail, or the
    generation that is waited for has ended.
    """
    if waiting.goal is WaitGoal.GONE:
        return seen is None
    if seen is None or seen.array_job_id < waiting.array_job_id:
        if waiting.is_seen:
            raise _ended(waiting, seen)
        return False
    is_unpaid = seen.state == "unpaid" and not seen.in_state("starting")
    rests = seen.state == "asleep" or is_unpaid
    if waiting.goal is WaitGoal.ASLEEP:
        return rests
    if waiting.goal is not WaitGoal.READY:
        return seen.state == waiting.goal.value
    fails = seen.state == "failing" and seen.failures >= FAILING and not waiting.forgiven
    if seen.is_ending or fails:
        raise _fails(seen)
    if rests and not seen.min_replicas:
        return waiting.may_sleep
    ready = len(seen.ready)
    return seen.state == "ready" and ready >= max(1, seen.min_replicas)


def _ended(waiting: Waiting, seen: ServiceObservation | None) -> OutsideError:
    array = waiting.array_job_id
    if seen is None:
        return OutsideError(Code.SERVICE_FAILING, f"{waiting.service} has ended.")
    note = f": {seen.note}" if seen.note else ""
    return OutsideError(
        Code.SERVICE_FAILING,
        f"Array job {array} of {waiting.service} has ended, and {seen.array_job_id} before it "
        f"stays{note}.",
        f"See: slicewise service history {seen.name}; its logs are "
        f"{logs_of(seen.name)}/{array}_SLOT.log where it was applied",
    )


def _fails(seen: ServiceObservation) -> OutsideError:
    if seen.is_ending:
        return OutsideError(Code.SERVICE_FAILING, f"{seen.service} is being deleted.")
    note = f": {seen.note}" if seen.note else ""
    written = next(
        (replica.why for replica in seen.in_state("held", seen.array_job_id) if replica.why), ""
    )
    return OutsideError(
        Code.SERVICE_FAILING,
        f"{seen.service} does not start{note}.{written and f' {written}'}",
        f"See: slicewise service logs {seen.name}",
    )


def must_forgive(waiting: Waiting, seen: ServiceObservation | None) -> bool:
    """Whether failed starts keep the start that is to be tried from being made now."""
    if seen is None or seen.array_job_id < waiting.array_job_id:
        return False
    return waiting.forgiven is None and bool(seen.failures) and not seen.ready


def after_look(waiting: Waiting, seen: ServiceObservation | None) -> Waiting:
    """Return what is known of the wait after this look."""
    if seen is None or seen.array_job_id < waiting.array_job_id:
        return waiting
    before = waiting.forgiven or 0
    # What fails from then on is the start that was to be tried.
    return replace(waiting, is_seen=True, forgiven=before if seen.failures >= before else 0)


def wake_hint(waiting: Waiting, seen: ServiceObservation | None) -> str:
    """Say what would wake a service that sleeps while one waits until it is ready; "" if awake."""
    sleeps = seen is not None and seen.state == "asleep" and not seen.min_replicas
    if not sleeps or waiting.goal is not WaitGoal.READY or waiting.may_sleep or waiting.is_woken:
        return ""
    name = waiting.service.partition("/")[2]
    return f"nothing wakes it but a request, or slicewise service scale {name} --min 1"


def progress(seen: ServiceObservation | None) -> str:
    """Return one line about where the service stands, which changes only when something happens."""
    if seen is None:
        return "not there yet"
    counts = (
        (len(seen.ready), "ready"),
        (len(seen.in_state("starting", seen.array_job_id)), "starting"),
        (len(seen.outdated), "outdated"),
    )
    parts = ", ".join(f"{count} {what}" for count, what in counts if count)
    state = f"{seen.state} ({parts})" if parts else seen.state
    return f"{state}; {seen.note}" if seen.note else state


def last_log_line(seen: ServiceObservation | None) -> str:
    """Return the last line that a replica that starts has written, with its name; "" if none."""
    replicas = seen.in_state("starting") if seen is not None else ()
    lines = (
        f"{replica.array_job_id}_{replica.slot}: {replica.last_log_line}"
        for replica in replicas
        if replica.last_log_line
    )
    return next(lines, "")
