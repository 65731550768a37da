"""Runs Slicewise's commands as the demo's users would type them, and sacct as a second witness."""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from slicewise.cluster.language.codes import Code, known
from slicewise.cluster.language.errors import OutsideError, Refusal
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.placement_text import placements_text
from slicewise.sandbox.demo.record import LedgerView, LoanChange, TaskRun
from slicewise.sandbox.demo.scenario import TenantPlan
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model

_HERE = Path(__file__).parent
_OPERATOR = "root"
_TIMEOUT_S = 90.0
_UNWRAPPED = ("env", "COLUMNS=500")
"""A terminal so wide that no message is broken into lines."""
_UNIX_SECONDS = ("env", "SLURM_TIME_FORMAT=%s")
_SACCT = (*_UNIX_SECONDS, "sacct", "--noheader", "--parsable2")

_SENT_BACK = frozenset({"PREEMPTED", "REQUEUED"})
"""States of a run that Slurm ended for another job, with the task back in the queue."""

JobTimes = tuple[float | None, float | None, float | None]
"""When a job was submitted, started and ended, in Unix seconds; None: not yet."""


class Runner(Protocol):
    """The signature of ``Sandbox.run``."""

    def __call__(
        self, user: str, argv: tuple[str, ...], *, timeout_s: float, check: bool
    ) -> CompletedProcess[str]:
        """Run a command as that user."""
        ...


class Commands:
    """Slicewise's commands, run in the sandbox.

    Each call raises OutsideError (SW-SANDBOX-FAILED), with the command's own message, if it fails.
    """

    def __init__(self, run: Runner, costs: Mapping[str, int]) -> None:
        """``costs``: millislices of one instance by GRES type."""
        self._run = run
        self._costs = costs

    def set_quota(self, plan: TenantPlan) -> None:
        """Set a tenant's nominal and what it may lend and borrow, as the operator."""
        lending = ("--lending-limit", plan.lends, "--borrowing-limit", plan.borrows)
        share = ("--weight", plan.weight)
        argv = ("slicewise", "tenant-quota", "set", plan.tenant, "--nominal", plan.nominal)
        self._output(_OPERATOR, *argv, *lending, *share)

    def open_account(self, plan: TenantPlan) -> None:
        """Add a tenant's account to Slurm, and its user to that, as the operator."""
        for what in (("account", plan.tenant), ("user", plan.user, f"account={plan.tenant}")):
            self._output(_OPERATOR, "sacctmgr", "--immediate", "add", *what)

    def sbatch(self, plan: TenantPlan, profile: str, seconds: int, tasks: int = 0) -> int:
        """Submit a batch job that asks for one MIG instance, as the tenant's user; its job id.

        With ``tasks`` it is an array of so many, each of which asks for one.
        """
        asks = (f"--gres=gpu:{profile}:1", "--mem=10", "--time=10", "--output=/dev/null")
        many = (f"--array=1-{tasks}",) if tasks else ()
        whose = f"--account={plan.tenant}"
        words = ("sbatch", "--parsable", whose, *asks, *many, f"--wrap=sleep {seconds}")
        return int(self._output(plan.user, *words))

    def cancel(self, job_id: int) -> None:
        """Cancel a job, as the operator; one that has ended stays as it is."""
        self._output(_OPERATOR, "scancel", "--quiet", str(job_id))

    def is_in_queue(self, job_id: int, state: str) -> bool:
        """Whether Slurm's queue has the job in that state."""
        which = (f"--jobs={job_id}", f"--states={state}", "--format=%i")
        return bool(self._call(_OPERATOR, "squeue", "--noheader", *which).stdout.strip())

    def running_since_s(self, job_id: int) -> Sequence[float]:
        """When each task of an array that runs now has started, in Unix seconds."""
        which = (f"--jobs={job_id}", "--states=RUNNING", "--format=%S")
        shown = self._call(_OPERATOR, *_UNIX_SECONDS, "squeue", "--noheader", *which).stdout
        return [float(text) for text in shown.split()]

    def survey(self) -> None:
        """Look up how all GPUs are cut now, as the operator."""
        self._output(_OPERATOR, "slicewise", "repartition", "survey")

    def repartition(self) -> tuple[Mapping[str, str], ...]:
        """Repartition GPUs for the jobs that wait, as the operator.

        Returns node, layout before and after, and state of each; () if nothing was to be done.
        """
        # The command exits 1 where a repartition was rolled back: for the demo a finding.
        return parse_repartitions(
            self._call(_OPERATOR, "slicewise", "repartition", "run", "--json").stdout
        )

    def job_times(self, jobs: Iterable[int]) -> Mapping[int, JobTimes]:
        """Return when these jobs were submitted, started and ended, by Slurm's accounting."""
        which = f"--jobs={','.join(map(str, jobs))}"
        fields = ("--allocations", "--format=JobIDRaw,Submit,Start,End")
        return parse_job_times(self._output(_OPERATOR, *_SACCT, which, *fields).splitlines())

    def task_runs(self, job_id: int) -> tuple[TaskRun, ...]:
        """Return each run of an array's tasks, by Slurm's accounting; times are Unix seconds."""
        which = ("--allocations", "--duplicates", f"--jobs={job_id}")
        fields = "--format=JobID,State,Start,End"
        return parse_task_runs(self._output(_OPERATOR, *_SACCT, *which, fields).splitlines())

    def loans(self, tenants: Iterable[str]) -> tuple[LoanChange, ...]:
        """Return every change of a loan that these tenants gave or took, in order of time.

        ``t_s`` is in Unix seconds.
        """
        asked = ("slicewise", "tenant-quota", "loans")
        answers = [self._output(_OPERATOR, *asked, tenant, "--all", "--json") for tenant in tenants]
        return parse_loans(answers)

    def apply(self, plan: TenantPlan, service_file: Path) -> None:
        """Apply a service, as the tenant's user."""
        self._output(plan.user, "slicewise", "service", "apply", str(service_file))

    def refused_application(self, plan: TenantPlan, service_file: Path) -> Refusal | None:
        """Apply as a user whose tenant has no quota; return the refusal, None if there is none."""
        done = self._call(plan.user, "slicewise", "service", "apply", str(service_file))
        return parse_refusal(done.stderr) if done.returncode else None

    def ledger(self) -> LedgerView:
        """Return the statement, and whether the ledger adds up, as the operator sees them."""
        # The command prints an imbalance and exits 1: for the demo a finding, not a failure.
        verified = self._call(_OPERATOR, "slicewise", "ledger", "verify", "--json")
        statement = self._output(_OPERATOR, "slicewise", "ledger", "statement", "--json")
        return parse_ledger(verified.stdout, statement)

    def sacct(self, plan: TenantPlan | None = None) -> Mapping[str, int]:
        """Return millislice-seconds by tenant from Slurm's accounting, asked directly.

        With a plan, only of the jobs of its service.

        The adapter that feeds the ledger is not used, so that sacct is a second witness. The states
        are named because sacct otherwise leaves out runs that have lost their eligible time
        (docs/explanation/ledger.md).
        """
        which = ("--allusers", "--duplicates", "--starttime=now-1hours", "--endtime=now")
        of = () if plan is None else (f"--accounts={plan.tenant}", f"--name={plan.service_name}")
        states = "--state=RUNNING,REQUEUED,PREEMPTED,NODE_FAIL"
        fields = "--format=JobIDRaw,Account,Start,End,ElapsedRaw,AllocTRES"
        lines = self._output(_OPERATOR, *_SACCT, *which, *of, states, fields).splitlines()
        return parse_sacct(lines, self._costs)

    def _output(self, user: str, *argv: str) -> str:
        done = self._call(user, *argv)
        if done.returncode:
            raise OutsideError(
                Code.SANDBOX_FAILED,
                f"{' '.join(argv)} (as {user}) ended with {done.returncode}: "
                f"{(done.stderr or done.stdout).strip()}",
            )
        return done.stdout

    def _call(self, user: str, *argv: str) -> CompletedProcess[str]:
        return self._run(user, (*_UNWRAPPED, *argv), timeout_s=_TIMEOUT_S, check=False)


def parse_refusal(stderr: str) -> Refusal:
    """Read what a refusing command printed: message, perhaps a hint, code, each on a line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    match lines:
        case [*messages, message, hint, code] if code.startswith("SW-"):
            return Refusal(known(code), " ".join((*messages, message)), hint)
        case [message, code] if code.startswith("SW-"):
            return Refusal(known(code), message)
    raise OutsideError(Code.SANDBOX_FAILED, f"A refusal without a code: {stderr.strip()!r}.")


def parse_ledger(verified: str, statement: str) -> LedgerView:
    """Read the JSON of ``slicewise ledger verify`` and ``slicewise ledger statement``."""
    try:
        answer = json.loads(statement)
        return LedgerView(
            int(json.loads(verified)["imbalance"]),
            {row["tenant"]: int(row["used_millislice_s"]) for row in answer["tenants"]},
            {
                f"{row['tenant']}/{row['key']}": int(row["used_millislice_s"])
                for row in answer["lines"]
                if row["key"]
            },
        )
    except (ValueError, KeyError, TypeError) as error:
        raise OutsideError(
            Code.SANDBOX_FAILED, f"The ledger's answer can't be read: {error!r}."
        ) from error


def parse_repartitions(text: str) -> tuple[Mapping[str, str], ...]:
    """Read the JSON of ``slicewise repartition run``."""
    try:
        return tuple(
            {
                **{name: str(repartition[name]) for name in ("node", "state")},
                **{name: _layout(repartition[name]) for name in ("before", "after")},
            }
            for repartition in json.loads(text)["repartitions"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise OutsideError(
            Code.SANDBOX_FAILED, f"The answer to repartition run can't be read: {error!r}."
        ) from error


def _layout(instances: Iterable[Mapping[str, Any]]) -> str:
    return placements_text(Placement(**instance) for instance in instances)


def parse_loans(answers: Iterable[str]) -> tuple[LoanChange, ...]:
    """Read the JSON of ``slicewise tenant-quota loans TENANT --all``, of some tenants.

    A change that two of them show counts once.
    """
    try:
        changes = {
            LoanChange(
                float(change["at_s"]),
                change["loan"]["lender"],
                change["loan"]["borrower"],
                int(change["loan"]["amount_millislices"]),
            )
            for answer in answers
            for change in json.loads(answer)
        }
    except (ValueError, KeyError, TypeError) as error:
        raise OutsideError(Code.SANDBOX_FAILED, f"Loans can't be read: {error!r}.") from error
    return tuple(sorted(changes, key=lambda change: (change.t_s, change.lender, change.borrower)))


def parse_job_times(lines: Iterable[str]) -> Mapping[int, JobTimes]:
    """Read ``JobIDRaw|Submit|Start|End`` of sacct, in Unix seconds."""
    rows = (line.split("|") for line in lines)
    return {
        int(job): (_seconds(submitted), _seconds(start), _seconds(end))
        for job, submitted, start, end in rows
    }


def parse_task_runs(lines: Iterable[str]) -> tuple[TaskRun, ...]:
    """Read ``JobID|State|Start|End`` of sacct: the runs that began, in order of time."""
    rows = (line.split("|") for line in lines)
    runs = (
        TaskRun(task, float(start), _seconds(end), state in _SENT_BACK, state == "COMPLETED")
        for task, state, start, end in rows
        if start.isdigit()
    )
    return tuple(sorted(runs, key=lambda run: (run.started_s, run.task)))


def _seconds(text: str) -> float | None:
    return float(text) if text.isdigit() else None


def parse_sacct(lines: Iterable[str], costs: Mapping[str, int]) -> Mapping[str, int]:
    """Sum ``JobIDRaw|Account|Start|End|ElapsedRaw|AllocTRES`` to millislice-seconds by account.

    A run's steps follow it. If its start is lost, it counts from the start of its batch step.
    """
    sums: Counter[str] = Counter()
    end, cost = "", 0
    for line in lines:
        job, account, start, own_end, elapsed_s, tres = line.split("|")
        if "." not in job:
            end, cost = "" if start.isdigit() else own_end, _cost(tres, costs)
            sums[account] += cost * int(elapsed_s)
        elif job.endswith(".batch") and end.isdigit():
            sums[account] += cost * (int(end) - int(start))
    return dict(sums)


def _cost(tres: str, costs: Mapping[str, int]) -> int:
    pairs = (item.partition("=") for item in tres.split(","))
    counts = {name.removeprefix("gres/gpu:"): count for name, _, count in pairs}
    return sum(cost * int(counts.get(gres_type, "0")) for gres_type, cost in costs.items())


def write_service_file(plan: TenantPlan, model_repository: Path, directory: Path) -> Path:
    """The service as a TOML file that anyone may read."""
    templates = Environment(
        loader=FileSystemLoader(_HERE / "services"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 -- TOML: every text goes through the tojson filter
    )
    path = directory / f"{plan.service_name}.toml"
    text = templates.get_template("service.toml.j2").render(
        name=plan.service_name,
        tenant=plan.tenant,
        engine=plan.engine,
        model_repository=str(model_repository),
        model=plan.model,
        profile=plan.profile,
        max_replicas=plan.max_replicas,
        concurrency=plan.concurrency,
    )
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
    return path


def publish_models(directory: Path) -> Path:
    """Copy the model repository to where every user can read it; returns its path."""
    repository = directory / "demo"
    shutil.copytree(_HERE / "model_repository", repository, dirs_exist_ok=True)
    return _readable(repository)


def publish_chat_model(directory: Path, name: str) -> Path:
    """Write the chat's model to where every user can read it; returns its repository's path."""
    repository = directory / "demo-chat"
    (repository / name).mkdir(parents=True, exist_ok=True)
    write_tiny_model(repository / name / f"{name}.gguf")
    return _readable(repository)


def _readable(repository: Path) -> Path:
    for path in (repository, *repository.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return repository
