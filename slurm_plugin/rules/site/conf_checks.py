"""Checks slurm.conf as slurmctld has read it; one function for each thing that may be wrong."""

import re
from collections.abc import Iterator, Mapping, Sequence

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.findings import Finding, Mend, Place, error, hint, setting, warning
from slicewise.cluster.language.slurm.values import duration_s, numbers
from slicewise.slurm_plugin.rules.common.qos_names import is_ours
from slicewise.slurm_plugin.rules.site.facts import SlurmFacts, Wanted
from slicewise.slurm_plugin.rules.slurm_config.conf_words import conf_line, conf_words
from slicewise.slurm_plugin.rules.slurm_config.isolation import isolation_findings
from slicewise.slurm_plugin.rules.slurm_config.power_saving import power_findings
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import (
    PREEMPT_QOS,
    config_findings,
    longest_lose,
    short_window,
    slow_starts,
    wanted_window_min,
)

_OLDEST = (22, 5)
_UNKNOWN_HERE = "nobody"
"""How Slurm's commands call a uid of slurmctld's that has no name on their own host."""
_HELD_AGAIN = 187
"""How the script of a service ends, so that Slurm holds its slot again."""
_FEW_PORTS = 100
_OF_PORTS = re.compile(r"ports=|[0-9]")
"""A word of MpiParams that is of the ports; a list of them has commas, too."""
_SHORT_KILL_WAIT_S, _LONG_KILL_WAIT_S = 5, 120
_SHORT_JOB_AGE_S = 60
_FEW_JOBS = 2000
_LOSES_JOBS = (
    "Change it while there are no jobs: at a change of SelectType Slurm loses all jobs, running and"
    " waiting (except between cons_res and cons_tres)."
)
_CORE_WORDS = ("CR_CORE", "CR_CPU", "CR_SOCKET")
_RESOURCE_WORDS = (*_CORE_WORDS, "CR_BOARD", "CR_MEMORY")
_NO_RESOURCE_WORDS = frozenset({"CR_CORE_DEFAULT_DIST_BLOCK"})
"""Words that begin as those of resources do, and stand beside them."""


def conf_checks(facts: SlurmFacts, wanted: Wanted) -> tuple[Finding, ...]:
    """Return everything that slurm.conf lacks, or has otherwise than Slicewise needs it."""
    managed = [view for view in facts.partitions if view.name in wanted.partitions]
    window_min = wanted_window_min(facts.config, facts.partitions, wanted.partitions)
    return (
        *config_findings(facts.config, wanted.costs, facts.partitions, wanted.partitions),
        *isolation_findings(facts.config),
        *power_findings(facts.config, managed),
        *slow_starts(facts.config, window_min),
        *longest_lose(facts.config, window_min),
        *short_window(facts.config, window_min),
        *(finding for check in _CHECKS for finding in check(facts, wanted)),
    )


def _line(text: str) -> Mend:
    return Mend(Place.SLURM_CONF, text)


def _said(facts: SlurmFacts, key: str) -> str:
    """Return a setting; "" for an unset one."""
    text = facts.config.get(key, "")
    return "" if text in {"(null)", "N/A"} else text


def _number(facts: SlurmFacts, key: str) -> int | None:
    """Return the number at the beginning of a setting such as ``30 sec``; None without one."""
    match = re.match(r"\d{1,12}", facts.config.get(key, ""))
    return int(match[0]) if match else None


def _versions(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    parts = re.match(r"(\d+)\.(\d+)", _said(facts, "SLURM_VERSION"))
    if parts and (int(parts[1]), int(parts[2])) < _OLDEST:
        yield error(
            Code.VERSION,
            f"slurmctld is version {_said(facts, 'SLURM_VERSION')}",
            "Slicewise was tried with 22.05 and newer",
            advice="Upgrade Slurm first.",
        )


def _cluster(facts: SlurmFacts, wanted: Wanted) -> Iterator[Finding]:
    name = _said(facts, "ClusterName")
    # slurmdbd, and so the ledger, has it in small letters.
    if wanted.cluster not in {name, name.lower()}:
        yield error(
            Code.CLUSTER_NAME,
            f"Slurm's ClusterName is {name}, [cluster] name of slicewise.toml {wanted.cluster}",
            "limits and charges would be those of another cluster",
            setting("cluster", f'name = "{name}"'),
        )


def _slurm_user(facts: SlurmFacts, wanted: Wanted) -> Iterator[Finding]:
    name, _, uid = _said(facts, "SlurmUser").removesuffix(")").partition("(")
    if name == _UNKNOWN_HERE and wanted.slurm_user != name:
        yield error(
            Code.USER,
            f"SlurmUser has uid {uid}, which is no user of this host",
            "slurmctld, the daemon and who asks it know each other by that uid",
            advice=f"Give {wanted.slurm_user} the same uid on all hosts.",
        )
    elif name and name != wanted.slurm_user:
        yield error(
            Code.CONF_DIFFERS,
            f"SlurmUser is {name}, [daemon] slurm_user of slicewise.toml {wanted.slurm_user}",
            "slurmctld can't reach the daemon's admission socket",
            setting("daemon", f'slurm_user = "{name}"'),
        )


def _storage(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    if _said(facts, "AccountingStorageType") != "accounting_storage/slurmdbd":
        yield error(
            Code.CONF_LIMITS,
            "AccountingStorageType is not accounting_storage/slurmdbd",
            "there are no accounts and no QOS that quotas could be written into",
            _line("AccountingStorageType=accounting_storage/slurmdbd"),
        )


def _preempt_lists(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    """Name QOS of the site that begin to preempt with PreemptType=preempt/qos."""
    if _said(facts, "PreemptType") == PREEMPT_QOS:
        return
    rows = {qos.name: qos for qos in facts.qos or ()}
    for qos in rows.values():
        victims = sorted(name for name in qos.preempt if not is_ours(name))
        if is_ours(qos.name) or not victims:
            continue
        own = [name for name in victims if name in rows and rows[name].preempt_mode == "cluster"]
        yield hint(
            Code.CONF_PREEMPT,
            f"QOS {qos.name} has a Preempt list: {', '.join(victims)}",
            "with PreemptType=preempt/qos it preempts their jobs, which it does not now",
            Mend(
                Place.ACCOUNTS, f"sacctmgr modify qos {qos.name} set Preempt-={','.join(victims)}"
            ),
            advice=f"Or leave it. {_mode_of(own)}".rstrip(),
        )


def _mode_of(qos: Sequence[str]) -> str:
    """How to say what becomes of the jobs of these QOS, which say it not themselves."""
    if not qos:
        return ""
    return (
        f"What becomes of jobs of {', '.join(qos)} is then PreemptMode of slurm.conf, or what is"
        f" written down: sacctmgr modify qos {','.join(qos)} set PreemptMode=cancel (or requeue)."
    )


def _select(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    kind = _said(facts, "SelectType")
    words = conf_words(facts.config, "SelectTypeParameters")
    kept = [word for word in words if not word.upper().startswith(_RESOURCE_WORDS)]
    kept += [word for word in words if word.upper() in _NO_RESOURCE_WORDS]
    parameters = conf_line("SelectTypeParameters", ("CR_Core_Memory", *kept))
    if kind != "select/cons_tres":
        yield error(
            Code.CONF_LIMITS,
            f"SelectType is {kind or 'not set'}",
            "Slurm gives a job whole nodes, or can't count GPUs by their type",
            _line("SelectType=select/cons_tres"),
            parameters,
            advice="" if kind == "select/cons_res" else _LOSES_JOBS,
        )
    elif not any(word.upper().startswith(_CORE_WORDS) for word in words if word not in kept):
        yield error(
            Code.CONF_LIMITS,
            f"SelectTypeParameters is {_said(facts, 'SelectTypeParameters') or 'not set'}",
            "Slurm does not allot cores, so one job may take all of a node's",
            parameters,
        )


def _scheduler(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    kind = _said(facts, "SchedulerType")
    if kind not in {"", "sched/backfill"}:
        yield warning(
            Code.CONF_BACKFILL_WINDOW,
            f"SchedulerType is {kind}",
            "a job that waits for GPUs keeps all that come behind it in its partition waiting, also"
            " replicas for which others are free",
            _line("SchedulerType=sched/backfill"),
        )


def _gres_types(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    kinds = conf_words(facts.config, "GresTypes")
    if "gpu" not in kinds:
        yield error(
            Code.CONF_LIMITS,
            "GresTypes has no gpu",
            "slurmctld ignores the Gres of all nodes: no job gets a GPU",
            conf_line("GresTypes", (*kinds, "gpu")),
        )


def reserved_ports(facts: SlurmFacts) -> frozenset[int]:
    """Return the ports that ``srun --resv-ports`` allots; empty without MpiParams, or if unclear.

    A range such as 21000-21999.
    """
    match = re.search(r"ports=([\d,-]+)", _said(facts, "MpiParams"))
    try:
        return frozenset(numbers(match[1])) if match else frozenset()
    except SlicewiseError:
        return frozenset()


def _ports(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    ports = reserved_ports(facts)
    beside = [w for w in conf_words(facts.config, "MpiParams") if not _OF_PORTS.match(w)]
    mend = conf_line("MpiParams", ("ports=21000-21999", *beside))
    if not ports:
        yield error(
            Code.CONF_SERVICES,
            "MpiParams has no ports=",
            'srun --resv-ports fails, and every replica "ended with 1"',
            mend,
            advice="Choose a range that nothing else on the nodes uses.",
        )
    elif len(ports) < _FEW_PORTS:
        yield warning(
            Code.CONF_SERVICES,
            f"MpiParams has {len(ports)} ports",
            "a replica takes up to three of them on all of its nodes, and fails to start where none"
            " is left",
            mend,
        )


def _held_again(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    text = _said(facts, "RequeueExitHold")
    try:
        codes = numbers(text)
    except SlicewiseError:
        codes = ()
    if _HELD_AGAIN not in codes:
        yield error(
            Code.CONF_SERVICES,
            f"RequeueExitHold lacks {_HELD_AGAIN}",
            "a replica that ends takes its slot with it: a service runs out of slots",
            conf_line(
                "RequeueExitHold",
                (*conf_words(facts.config, "RequeueExitHold"), str(_HELD_AGAIN)),
            ),
        )


def _requeue(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    if _said(facts, "JobRequeue") == "0":
        yield warning(
            Code.CONF_REQUEUE,
            "JobRequeue is 0",
            "jobs on borrowed quota that do not say --requeue are ended for good when the lender"
            " needs it",
            _line("JobRequeue=1"),
            advice="It is what all jobs get that say neither: those of your own that must not run"
            " twice then say --no-requeue.",
        )


def _submit_plugin(facts: SlurmFacts, wanted: Wanted) -> Iterator[Finding]:
    plugins = conf_words(facts.config, "JobSubmitPlugins")
    if "lua" not in {name.removeprefix("job_submit/") for name in plugins}:
        # Before mode enforce services need none.
        lacks = error if wanted.mode == "enforce" else hint
        yield lacks(
            Code.CONF_LIMITS,
            "JobSubmitPlugins has no lua",
            "slurmctld runs no job_submit.lua: no job is admitted, and untyped GPUs pass all"
            " quotas, which matters once mode is enforce",
            conf_line("JobSubmitPlugins", (*plugins, "lua")),
            advice="Write job_submit.lua first (slicewise admission install): slurmctld does not"
            " start without it.",
        )


def _priority_type(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    if _said(facts, "PriorityType") != "priority/multifactor":
        yield error(
            Code.CONF_PRIORITY,
            f"PriorityType is {_said(facts, 'PriorityType') or 'not set'}",
            "Slurm ignores site_factor, so classes, shares and waiting times order no job",
            _line("PriorityType=priority/multifactor"),
        )
    if plugin := _said(facts, "PrioritySiteFactorPlugin"):
        yield error(
            Code.CONF_PRIORITY,
            f"PrioritySiteFactorPlugin is {plugin}",
            "it overwrites the site_factor that Slicewise sets",
            conf_line("PrioritySiteFactorPlugin", ()),
        )


def _weights_beside(facts: SlurmFacts) -> Mapping[str, int]:
    """Return the weights of Slurm's own factors but age; none where they count nothing."""
    if _said(facts, "PriorityType") != "priority/multifactor":
        return {}
    return {
        key: weight
        for key in facts.config
        if key.startswith("PriorityWeight") and key != "PriorityWeightAge"
        if (weight := _number(facts, key))
    }


def fitting_priority_max(facts: SlurmFacts) -> int:
    """Return the highest site_factor that outweighs Slurm's own factors; 0 if it has none."""
    return min(10 * sum(_weights_beside(facts).values()), 1_000_000)


def _priority_weights(facts: SlurmFacts, wanted: Wanted) -> Iterator[Finding]:
    beside = _weights_beside(facts)
    total = sum(beside.values())
    if not total:
        return
    fitting = setting("priority", f"max = {fitting_priority_max(facts)}")
    parts = ", ".join(f"{key}={weight}" for key, weight in sorted(beside.items()))
    age = _number(facts, "PriorityWeightAge") or 0
    if total >= wanted.priority_max:
        yield warning(
            Code.CONF_WEIGHTS,
            f"site_factor is {wanted.priority_max} at most, and Slurm's own weights add up to"
            f" {total} ({parts})",
            "the site's factors outweigh classes, shares and waiting: a job may wait for ever",
            fitting,
            advice="Or lower the weights: docs/explanation/priority.md, Beside Slurm's own"
            " factors.",
        )
    elif age <= total and 10 * total > wanted.priority_max:
        yield hint(
            Code.CONF_WEIGHTS,
            f"Slurm's own weights add up to {total} ({parts}), beside a site_factor of"
            f" {wanted.priority_max} at most",
            "a newer job that has waited its full time may go before an older one",
            fitting,
        )


def _kill_wait(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    wait_s = _number(facts, "KillWait")
    if wait_s is not None and wait_s < _SHORT_KILL_WAIT_S:
        yield warning(
            Code.CONF_KILL_WAIT,
            f"KillWait is {wait_s} s",
            "a replica that must go is killed with the requests that it still answers",
            _line("KillWait=30"),
        )
    if wait_s is not None and wait_s > _LONG_KILL_WAIT_S:
        yield hint(
            Code.CONF_KILL_WAIT,
            f"KillWait is {wait_s} s",
            "a lender may wait as long for GPUs that a job does not give up",
            _line("KillWait=30"),
        )


def _exempt(facts: SlurmFacts, wanted: Wanted) -> Iterator[Finding]:
    # A term of loans is written into the borrowed QOS, where it counts instead of slurm.conf's.
    try:
        exempt_s = 0 if wanted.term_s else duration_s(_said(facts, "PreemptExemptTime")) or 0
    except SlicewiseError:
        return
    if exempt_s > wanted.grace_s:
        yield warning(
            Code.CONF_PREEMPT,
            f"PreemptExemptTime is {exempt_s} s, [lending] grace_s {wanted.grace_s}",
            "Slurm leaves borrowed jobs alone for as long after their start: lenders wait",
            _line("PreemptExemptTime=00:00:00"),
            advice="Where loans shall last for a while, say so in [lending] term_s.",
        )


def _job_age(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    age_s = _number(facts, "MinJobAge")
    if age_s is not None and 0 < age_s < _SHORT_JOB_AGE_S:
        yield warning(
            Code.CONF_BOUNDS,
            f"MinJobAge is {age_s} s",
            "slurmctld forgets an ended job before the daemon, if it is away for a minute, has"
            " seen how it ended: slots are lost, and charges come later, from accounting",
            _line("MinJobAge=300"),
        )


def _job_counts(facts: SlurmFacts, wanted: Wanted) -> Iterator[Finding]:
    most = _number(facts, "MaxJobCount")
    if most is not None and most < _FEW_JOBS:
        yield warning(
            Code.CONF_BOUNDS,
            f"MaxJobCount is {most}",
            "each slot of a service counts as a job, held or not: soon nothing can be submitted",
            _line("MaxJobCount=10000"),
        )
    size = _number(facts, "MaxArraySize")
    if size is not None and size <= wanted.servers:
        yield warning(
            Code.CONF_BOUNDS,
            f"MaxArraySize is {size}, and [gateway] servers {wanted.servers}",
            "a service with as many replicas can't be submitted: its slots are one array",
            _line("MaxArraySize=1001"),
        )


def _private(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    if _said(facts, "PrivateData").lower() in {"", "none"}:
        yield hint(
            Code.CONF_PRIVATE,
            "PrivateData is not set",
            "every user sees which tenant runs which service, and of every job name, account and"
            " comment",
            _line("PrivateData=jobs,accounts,users,usage"),
            advice="In slurmdbd.conf, too. If your users may see that, accept the code.",
        )


def _auth(facts: SlurmFacts, wanted: Wanted) -> Iterator[Finding]:
    kind = _said(facts, "AuthType")
    if kind != "auth/munge":
        if wanted.asks_by_munge:
            yield warning(
                Code.CONF_AUTH,
                f"AuthType is {kind}, and commands on other hosts ask the daemon by munge",
                "they are refused where no munged runs",
                advice="Let them ask by https, with [daemon] certificate"
                " (docs/how-to/without-munge.md); or run munged with one key on these hosts.",
            )
        return
    match = re.search(r"socket=([^,]+)", _said(facts, "AuthInfo"))
    socket = match[1] if match else ""
    if socket != wanted.munge_socket:
        yield warning(
            Code.CONF_AUTH,
            f"Slurm's munge socket is {socket or 'the default'}, [daemon] munge_socket of"
            f" slicewise.toml {wanted.munge_socket or 'not set'}",
            "commands of other hosts may be checked by another munged, with another key",
            *([setting("daemon", f'munge_socket = "{socket}"')] if socket else []),
        )


def _spec_cores(facts: SlurmFacts, _: Wanted) -> Iterator[Finding]:
    if _said(facts, "AllowSpecResourcesUsage").lower() in {"yes", "1"}:
        yield warning(
            Code.CONF_SPEC_CORES,
            "AllowSpecResourcesUsage is set",
            "by --core-spec a job takes cores that no limit counts, and other GPUs of its node lie"
            " idle",
            _line("AllowSpecResourcesUsage=No"),
        )


_CHECKS = (
    *(
        _versions,
        _cluster,
        _slurm_user,
        _storage,
        _preempt_lists,
        _select,
        _scheduler,
        _gres_types,
        _ports,
    ),
    *(_held_again, _requeue, _submit_plugin, _priority_type, _priority_weights, _kill_wait),
    *(_exempt, _job_age, _job_counts, _private, _auth, _spec_cores),
)
