"""Plants faults into what the doctor knows of a good site: each is found, named and mended."""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from builders.nodes import a_node

from slicewise.cluster.language.file_access import Inode, Need, Person, Right, Way
from slicewise.cluster.language.findings import Finding, Place, Severity
from slicewise.cluster.language.host_findings import Holder, Space
from slicewise.cluster.language.jobs import PartitionView
from slicewise.cluster.language.slurm.billing_limits import BillingLimit
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.key_messages import KeyView
from slicewise.slurm_plugin.rules.common.ledger_facts import LedgerFacts, LockHolder
from slicewise.slurm_plugin.rules.quota.types import Quota, Tenant
from slicewise.slurm_plugin.rules.site.conf_checks import conf_checks, reserved_ports
from slicewise.slurm_plugin.rules.site.facts import (
    DaemonFacts,
    FileFacts,
    HostFacts,
    NodeCacheFacts,
    ScriptFacts,
    ShownCertificate,
    SlurmFacts,
    TokenFacts,
    Wanted,
    WayBackFacts,
    WebFacts,
)
from slicewise.slurm_plugin.rules.site.host_checks import (
    clock_checks,
    daemon_checks,
    host_checks,
    key_checks,
    node_cache_checks,
    node_programs_checks,
)
from slicewise.slurm_plugin.rules.site.ledger_checks import ledger_checks, way_back_checks
from slicewise.slurm_plugin.rules.site.limit_checks import (
    admin_checks,
    bound_checks,
    capacity_checks,
    cluster_checks,
    drift_checks,
    exempt_checks,
    group_checks,
    minutes_checks,
    type_checks,
)
from slicewise.slurm_plugin.rules.site.partition_checks import by_mode, partition_checks
from slicewise.slurm_plugin.rules.site.script_checks import script_checks
from slicewise.slurm_plugin.rules.site.token_checks import certificate_checks
from slicewise.slurm_plugin.rules.site.web_checks import web_checks

ERROR, WARNING, HINT = Severity.ERROR, Severity.WARNING, Severity.HINT
CONFIG = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "AccountingStorageTRES": "cpu,mem,billing,gres/gpu,gres/gpu:1g.10gb",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AllowSpecResourcesUsage": "No",
    "AuthInfo": "(null)",
    "AuthType": "auth/munge",
    "ClusterName": "hpc",
    "ConstrainDevices": "yes",
    "DefMemPerCPU": "100",
    "GresTypes": "gpu",
    "JobRequeue": "1",
    "JobSubmitPlugins": "lua",
    "KillWait": "30 sec",
    "MaxArraySize": "1001",
    "MaxJobCount": "10000",
    "MinJobAge": "300 sec",
    "MpiParams": "ports=21000-21999",
    "PreemptMode": "REQUEUE",
    "PreemptType": "preempt/qos",
    "PriorityFlags": "",
    "PriorityType": "priority/multifactor",
    "PriorityWeightAge": "0",
    "PriorityWeightQOS": "0",
    "PriorityWeightTRES": "(null)",
    "PrioritySiteFactorPlugin": "(null)",
    "PrivateData": "jobs,usage",
    "ProctrackType": "proctrack/cgroup",
    "RequeueExitHold": "187",
    "SchedulerParameters": "bf_continue,batch_sched_delay=0,preempt_youngest_first",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "SLURM_VERSION": "22.05.8",
    "SlurmUser": "slurm(64030)",
    "TaskPlugin": "task/cgroup,task/affinity",
}
POWER_SAVING = {"SuspendProgram": "/sbin/off", "ResumeProgram": "/sbin/on"}
WANTED = Wanted("hpc", ("gpu",), "enforce", "slurm", {"1g.10gb": 1000})
WEIGHTS = {"cpu": 0.0, "mem": 0.0, "gres/gpu:1g.10gb": 1000.0}
GPU = PartitionView("gpu", WEIGHTS, "slicewise_gate")
NODE = a_node()
FACTS = SlurmFacts(CONFIG, (GPU, PartitionView("cpu", {}, "")), (NODE,), 0.0)
SCRIPT = ScriptFacts(
    script="/etc/slurm/job_submit.lua",
    text='local slicewise = dofile("/opt/slicewise/lua/slicewise.lua")',
    on_disk="12",
    module="/opt/slicewise/lua/slicewise.lua",
    loaded="12",
    loaded_mode="enforce",
)
LEDGER = LedgerFacts(
    role="slurm",
    revision="0013",
    head="0013",
    server_version=150008,
    settings={"fsync": "on", "archive_mode": "on"},
)
DAEMON = DaemonFacts("0.1.0", "0.1.0", "enforce", leads=True, complete=True, looked_s=0.4)


def a_file(path: str, duty: str, mode: int, owner: str = "root") -> FileFacts:
    """A file in a folder that only root changes."""
    way = Way(path, (Inode("/etc/slicewise", 0o40755),), Inode(path, 0o100000 | mode, owner=owner))
    return FileFacts(way, duty, ("root", "slurm"))


URL, CONFIG_FILE = "/etc/slicewise/database-url", "/etc/slicewise/slicewise.toml"
SECRET, TOML = a_file(URL, "secret", 0o640), a_file(CONFIG_FILE, "own", 0o644)
SLURM = Person("slurm", 64030)
LOST = Way(URL, missing=URL)
OPEN = Way(URL, (Inode("/etc", 0o40777),), Inode(URL, 0o100600))
NGINX = Holder("::", 6830, 71, "nginx", "www-data")
CLOSED = Way(URL, (Inode("/etc/slicewise", 0o40700),), Inode(URL, 0o100644))
UNSEEN = Way("/nfs/slicewise.toml", is_unseen=True)
LED = Way(URL, CLOSED.folders, CLOSED.target, links=(Inode(URL, 0o120777, 7, owner="eve"),))
TOKENS = TokenFacts("/var/spool/slurmctld/jwt_hs256.key", "/var/spool/slurmctld/jwt_hs256.key", {})
HOST = HostFacts(
    files=(SECRET, TOML),
    users={"launcher_user=slicewise": True, "slurm_user=slurm": True},
    client_ports=(32768, 60999),
    tokens=TOKENS,
)
PORTS = frozenset(range(21000, 22000))
OWN = KeyView(key_id="a" * 12, tenant="vision", name="ci", created_by="alice", created_s=1.0)
GONE = OWN.model_copy(update={"has_left": True})
OLD = GONE.model_copy(update={"expires_s": 4.0})
WEB = WebFacts(
    listen="127.0.0.1:8690",
    user="slicewise-web",
)


def conf(wanted: Wanted = WANTED, **changed: str) -> tuple[Finding, ...]:
    return conf_checks(replace(FACTS, config={**CONFIG, **changed}), wanted)


def partition(wanted: Wanted = WANTED, **changed: Any) -> tuple[Finding, ...]:
    """What is found where the partition's view is changed so."""
    return partition_checks(replace(FACTS, partitions=(replace(GPU, **changed),)), wanted)


def script(mode: str = "enforce", **changed: Any) -> tuple[Finding, ...]:
    return script_checks(replace(SCRIPT, **changed), mode)


def ledger(**changed: Any) -> tuple[Finding, ...]:
    return ledger_checks(replace(LEDGER, **changed))


def reads_only() -> tuple[Finding, ...]:
    return ledger(settings={**LEDGER.settings, "default_transaction_read_only": "on"})


def waits_for_a_standby() -> tuple[Finding, ...]:
    """What is found where commits wait for a standby that is gone, and so keep their locks."""
    settings = {**LEDGER.settings, "synchronous_standby_names": "*", "synchronous_commit": "on"}
    return ledger(settings=settings, holders=(LockHolder("daemon", "slicewise", "x", 9.0),))


def away(state: str, reason: str = "") -> tuple[Finding, ...]:
    """What is found where a node beside the one that is up has this state."""
    node = replace(NODE, name="gpu09", states=frozenset({state}), reason=reason)
    return partition_checks(replace(FACTS, nodes=(NODE, node)), WANTED)


def daemon(mode: str = "enforce", **changed: Any) -> tuple[Finding, ...]:
    return tuple(daemon_checks(replace(DAEMON, **changed), mode, is_pair=False))


def host(**changed: Any) -> tuple[Finding, ...]:
    return host_checks(replace(HOST, **changed), PORTS)


def web(**changed: Any) -> tuple[Finding, ...]:
    return web_checks(replace(WEB, **changed))


def limits(
    lending: Mapping[str, int] | None = None,
    minutes: Mapping[str, int] | None = None,
    elsewhere: Collection[str] = ("slicewise_gate", "slicewise_physics", "long"),
) -> Iterable[Finding]:
    """What is found of a group with one tenant below it."""
    lends = {"group": 4000, "team": 2000, **(lending or {})}
    policy = {
        name: Tenant(name, parent, Quota(4000, lending_limit_millislices=lends[name]))  # type: ignore[arg-type]
        for name, parent in (("group", ""), ("team", "group"))
    }
    row = Association("hpc", "team", "", "group", frozenset(), "", {}, grp_tres_mins=minutes or {})
    other = replace(row, account="physics", grp_tres_mins={"cpu": 7})
    found = minutes_checks((row, other), policy)
    return (*group_checks(policy), *cluster_checks(policy, elsewhere), *found)


def guaranteed(**of_type: int) -> Iterable[Finding]:
    """What is found where seven instances are there, and tenants in a group are guaranteed some."""
    policy = {
        name: Tenant(name, "group", Quota(4000, type_nominals={"1g.10gb": count}))  # type: ignore[arg-type]
        for name, count in of_type.items()
    }
    group = Tenant("group", "", Quota(0, type_nominals={"1g.10gb": 7}))  # type: ignore[arg-type]
    nodes = [replace(NODE, gpus={"1g.10gb": 7}), replace(NODE, partitions=frozenset({"cpu"}))]
    return type_checks({"group": group, **policy}, nodes, frozenset({"gpu"}))


def above_capacity(nominal: int, capacity: int | None = 7000) -> list[Finding]:
    """Of one tenant, on a node that is down and one that is up."""
    nodes = [replace(NODE, name="a"), replace(NODE, name="b", states=frozenset({"DOWN"}))]
    policy = {"team": Tenant("team", "", Quota(Millislices(nominal)))}
    return list(capacity_checks(policy, nodes, frozenset({"gpu"}), capacity))


def test_quotas_above_the_cluster_are_a_fault_of_nobodys_limit():
    (found,) = above_capacity(9000)
    assert found.code == "SW-QUOTA-CAPACITY"
    assert found.what == "Quotas guarantee 9 slices, 2 slices more than there are: 7"
    assert "no job can have: b." in found.text
    assert above_capacity(7000) == above_capacity(9000, None) == []


def test_as_many_instances_as_there_are_may_be_guaranteed():
    assert list(guaranteed(team=4, other=3)) == []


def test_a_good_site_has_nothing_to_mend() -> None:
    found = (
        *(*conf(), *partition_checks(FACTS, WANTED), *limits(), *script(), *ledger(), *daemon()),
        *(*host(), *drift_checks(0, (), "enforce"), *node_programs_checks((), {})),
        *(*bounded("long", MaxJobsPerUser="0"), *exempt(60), *exempt(None)),
        *exempt(900, "slicewise_team_borrowed"),
        *with_admins(root="Administrator", slurm="Administrator", bob="Operator"),
        *clock_checks({"slurmctld": 0.0, "PostgreSQL": -1.2, "unknown": None}),
        *web(),
        *certificate_checks([ShownCertificate("head:6830", ends_s=2e9)], 1e9),
        *host(tokens=TokenFacts(signed_by="/var/spool/slurmctld/jwt_hs256.key")),
        *way_back_checks(WayBackFacts("/etc/slicewise/x.cfg", True, "hpc"), "observe"),
        *way_back_checks(WayBackFacts("/etc/slicewise/x.cfg", False, "hpc"), "enforce"),
    )
    assert found == ()


def bounded(name: str = "slicewise_team", **bounds: str) -> Iterable[Finding]:
    """What is found where somebody has bounded this QOS."""
    return bound_checks({name: bounds})


def exempt(seconds: int | None, *with_term: str) -> Iterable[Finding]:
    """What is found where jobs of two QOS may not be preempted for as long."""
    qos = {
        name: Qos(name, {}, frozenset(), preempt_exempt_s=seconds)
        for name in ("slicewise_team_borrowed", "long")
    }
    return exempt_checks(qos, {"team": Tenant("team", "", Quota(Millislices(1)))}, with_term, 60)


def with_admins(**levels: str) -> Iterable[Finding]:
    """What is found where these have an AdminLevel, and anna, slurm and root are members."""
    policy = {"team": Tenant("team", "", Quota(Millislices(1)))}
    rows = [
        Association("hpc", account, user, "", frozenset(), "", {})
        for account, user in (("team", "anna"), ("team", "slurm"), ("team", "root"), ("x", "bob"))
    ]
    return admin_checks(levels, rows, policy, ("slurm",))


IN_OBSERVE = replace(WANTED, mode="observe")


CACHE, HOME = Inode("/local/w", 0o41777), Inode("/local/w/7", 0o40700, 7)
ABOVE = Inode("/local", 0o40755)


def node_cache(
    inode: Inode | None = CACHE,
    file_system: str = "xfs",
    home: Inode = HOME,
    above: Inode = ABOVE,
    *,
    size_mib: int = 1000,
    given_mib: int = 3000,
) -> Iterable[Finding]:
    facts = NodeCacheFacts(
        "/local/w", inode, file_system, {"7": home}, (above,), size_mib, memory_mib=4000
    )
    return node_cache_checks(facts, a_node("n1", memory_mib=given_mib))


PLANTED = [
    # slurm.conf
    ("SW-VERSION", ERROR, conf(SLURM_VERSION="21.08.8")),
    ("SW-CLUSTER-NAME", ERROR, conf(ClusterName="other")),
    ("SW-CLUSTER-NAME", ERROR, conf(replace(WANTED, cluster="HPC"))),
    ("SW-CONF-DIFFERS", ERROR, conf(SlurmUser="root(0)")),
    ("SW-USER", ERROR, conf(SlurmUser="nobody(64030)")),
    ("SW-CONF-LIMITS", ERROR, conf(AccountingStorageType="accounting_storage/none")),
    ("SW-CONF-LIMITS", ERROR, conf(AccountingStorageEnforce="associations")),
    ("SW-CONF-LIMITS", ERROR, conf(AccountingStorageTRES="cpu,gres/gpu")),
    ("SW-CONF-PREEMPT", ERROR, conf(PreemptType="preempt/none")),
    ("SW-CONF-PREEMPT", ERROR, conf(PreemptMode="OFF")),
    ("SW-CONF-LIMITS", ERROR, conf(PriorityFlags="CALCULATE_RUNNING,MAX_TRES")),
    ("SW-DEVICES-OPEN", ERROR, conf(TaskPlugin="task/affinity")),
    ("SW-DEVICES-OPEN", ERROR, conf(ConstrainDevices="no")),
    ("SW-PROCESSES-LOOSE", WARNING, conf(ProctrackType="proctrack/pgid")),
    ("SW-CONF-LIMITS", ERROR, conf(SelectType="select/linear")),
    ("SW-CONF-LIMITS", ERROR, conf(SelectTypeParameters="CR_MEMORY")),
    ("SW-CONF-LIMITS", ERROR, conf(GresTypes="(null)")),
    ("SW-CONF-SERVICES", ERROR, conf(MpiParams="(null)")),
    ("SW-CONF-SERVICES", WARNING, conf(MpiParams="ports=21000-21011")),
    ("SW-CONF-SERVICES", ERROR, conf(RequeueExitHold="1-9,186")),
    ("SW-CONF-REQUEUE", WARNING, conf(JobRequeue="0")),
    ("SW-CONF-LIMITS", ERROR, conf(JobSubmitPlugins="all_partitions")),
    ("SW-CONF-LIMITS", HINT, conf(IN_OBSERVE, JobSubmitPlugins="all_partitions")),
    ("SW-CONF-PRIORITY", ERROR, conf(PriorityType="priority/basic")),
    ("SW-CONF-PRIORITY", ERROR, conf(PrioritySiteFactorPlugin="site_factor/x")),
    ("SW-CONF-WEIGHTS", WARNING, conf(PriorityWeightQOS="16000", PriorityWeightAge="20000")),
    ("SW-CONF-WEIGHTS", HINT, conf(PriorityWeightQOS="2000")),
    ("SW-CONF-BACKFILL-WINDOW", WARNING, conf(SchedulerType="sched/builtin")),
    ("SW-CONF-KILL-WAIT", WARNING, conf(KillWait="2 sec")),
    ("SW-CONF-KILL-WAIT", HINT, conf(KillWait="600 sec")),
    ("SW-CONF-POWER-SAVING", WARNING, conf(**POWER_SAVING, ResumeTimeout="60 sec")),
    ("SW-CONF-POWER-SAVING", WARNING, conf(**POWER_SAVING, SuspendTime="120 sec")),
    ("SW-CONF-POWER-SAVING", HINT, conf(**POWER_SAVING, ReturnToService="0")),
    (
        *("SW-CONF-POWER-SAVING", HINT),
        conf(**POWER_SAVING, SelectTypeParameters="CR_CORE_MEMORY,CR_LLN"),
    ),
    ("SW-CONF-PREEMPT", WARNING, conf(PreemptExemptTime="00:10:00")),
    ("SW-CONF-BOUNDS", WARNING, conf(MinJobAge="10 sec")),
    ("SW-CONF-BOUNDS", WARNING, conf(MaxJobCount="500")),
    ("SW-CONF-BOUNDS", WARNING, conf(MaxArraySize="16")),
    ("SW-CONF-PRIVATE", HINT, conf(PrivateData="none")),
    ("SW-CONF-AUTH", WARNING, conf(AuthInfo="socket=/run/other.sock,cred_expire=5")),
    ("SW-CONF-AUTH", WARNING, conf(replace(WANTED, asks_by_munge=True), AuthType="auth/slurm")),
    ("SW-CONF-SPEC-CORES", WARNING, conf(AllowSpecResourcesUsage="Yes")),
    ("SW-CONF-SLOW-START", HINT, conf(SchedulerParameters="preempt_youngest_first")),
    ("SW-CONF-PREEMPT-ORDER", HINT, conf(SchedulerParameters="batch_sched_delay=0")),
    (
        "SW-CONF-BACKFILL-WINDOW",
        HINT,
        conf_checks(replace(FACTS, partitions=(replace(GPU, max_time_s=86_460),)), WANTED),
    ),
    # partitions
    ("SW-CONF-DIFFERS", ERROR, partition(name="gpus")),
    ("SW-CONF-LIMITS", ERROR, partition(billing_weights={**WEIGHTS, "cpu": 1.0})),
    (
        "SW-CONF-LIMITS",
        ERROR,
        partition(billing_weights={"gres/gpu:1g.10gb": Fraction(7)}),
    ),
    ("SW-PARTITION-GATE", ERROR, partition(qos="")),
    ("SW-PARTITION-GATE", HINT, partition(IN_OBSERVE, qos="")),
    ("SW-NODE-DOWN", WARNING, partition(is_up=False)),
    ("SW-PARTITION-WORDS", ERROR, partition(words=frozenset({"OverSubscribe=EXCLUSIVE"}))),
    ("SW-PARTITION-WORDS", ERROR, partition(words=frozenset({"RootOnly=YES"}))),
    ("SW-NODE-DOWN", WARNING, away("NOT_RESPONDING")),
    ("SW-NODE-DOWN", WARNING, away("DOWN")),
    ("SW-NODE-DOWN", WARNING, away("INVAL")),
    ("SW-NODE-DOWN", HINT, away("DRAIN")),
    (
        "SW-PARTITION-MEMORY",
        WARNING,
        partition_checks(
            replace(
                FACTS,
                config={**CONFIG, "DefMemPerCPU": "UNLIMITED"},
                partitions=(replace(GPU, has_default_memory=False),),
            ),
            WANTED,
        ),
    ),
    ("SW-NODE-GRES", ERROR, partition_checks(replace(FACTS, nodes=()), WANTED)),
    (
        "SW-GPU-PRICE",
        ERROR,
        partition_checks(replace(FACTS, nodes=(NODE, replace(NODE, gpus={"a": 1}))), WANTED),
    ),
    # limits
    ("SW-LENDING-GROUP", HINT, limits({"group": 0})),
    ("SW-QUOTA-CAPACITY", WARNING, guaranteed(team=8)),
    ("SW-LIMITS-MINUTES", HINT, limits(minutes={"billing": 900})),
    ("SW-LIMITS-SHARED", WARNING, limits(elsewhere=("slicewise_team",))),
    ("SW-LIMITS-SHARED", WARNING, limits(elsewhere=("slicewise_group_borrowed",))),
    ("SW-LIMITS-UNSETTLED", WARNING, drift_checks(3, (), "enforce")),
    ("SW-LIMITS-BY-HAND", ERROR, bounded(MaxTRESPerUser="node=4,gres/gpu=0")),
    ("SW-LIMITS-BY-HAND", ERROR, bounded(MaxTRESPerAccount="gres/gpu:1g.10gb=0")),
    ("SW-LIMITS-BY-HAND", ERROR, bounded(MaxJobsPerUser="0")),
    ("SW-LIMITS-BY-HAND", ERROR, bounded(MaxWall="00:00:00")),
    ("SW-LIMITS-BY-HAND", HINT, bounded(MaxWall="1-00:00:00", MinTRESPerJob="gres/gpu=0")),
    ("SW-LIMITS-BY-HAND", WARNING, exempt(600)),
    ("SW-LIMITS-ADMINS", HINT, with_admins(anna="Operator")),
    ("SW-LIMITS-BY-HAND", WARNING, drift_checks(0, ("QOS x was changed.",), "enforce")),
    # job_submit.lua
    ("SW-SCRIPT-INSTALL", ERROR, script(text=None)),
    ("SW-SCRIPT-INSTALL", HINT, script("observe", text=None)),
    (
        "SW-SCRIPT-INSTALL",
        HINT,
        script("observe", text="return slurm.SUCCESS", module="", loaded_mode="observe"),
    ),
    ("SW-SCRIPT-INSTALL", ERROR, script(text="return slurm.SUCCESS", module="")),
    ("SW-SCRIPT-OLD", WARNING, script(has_old_lines=True)),
    ("SW-SCRIPT-INSTALL", ERROR, script(is_module_there=False)),
    ("SW-SCRIPT-PATH", HINT, script(module="/opt/v/lib/python3.11/x/slicewise.lua")),
    ("SW-ADMISSION-LUA", ERROR, script(problem="no module socket")),
    ("SW-SCRIPT-OFF", WARNING, script(is_off=True)),
    ("SW-RESTART", WARNING, script(loaded="11")),
    ("SW-SCRIPT-MODE", WARNING, script(loaded_mode="observe")),
    ("SW-SCRIPT-PASSED", WARNING, script(unadmitted=4)),
    # the ledger
    ("SW-DATABASE-OLD", ERROR, ledger(revision=f"{int(LEDGER.head) - 1:04}")),
    ("SW-DATABASE-OLD", ERROR, ledger(revision="base")),
    ("SW-DATABASE-NEW", ERROR, ledger(revision=f"{int(LEDGER.head) + 1:04}")),
    ("SW-DATABASE-RIGHTS", ERROR, ledger(changers=(("olga", "transfers"), ("PUBLIC", "seals")))),
    ("SW-DATABASE-RIGHTS", ERROR, ledger(lacks=("to charge",), is_owner=False)),
    ("SW-LEDGER-OWNER", HINT, ledger(is_owner=True)),
    ("SW-VERSION", WARNING, ledger(server_version=120004)),
    ("SW-LEDGER-FSYNC", ERROR, ledger(settings={"fsync": "off", "archive_mode": "on"})),
    ("SW-LEDGER-FSYNC", ERROR, ledger(settings={"full_page_writes": "off", "archive_mode": "on"})),
    ("SW-DATABASE-READ-ONLY", ERROR, ledger(is_standby=True)),
    ("SW-DATABASE-READ-ONLY", ERROR, reads_only()),
    ("SW-DATABASE-READ-ONLY", ERROR, waits_for_a_standby()),
    ("SW-LEDGER-BACKUP", HINT, ledger(settings={"fsync": "on", "archive_mode": "off"})),
    ("SW-LEDGER-SEALS", WARNING, ledger(unsealed_s=90_000.0)),
    ("SW-LEDGER-BLOAT", HINT, ledger(dead_rows=200_000, live_rows=9, bloated="loans")),
    ("SW-DATABASE-BUSY", WARNING, ledger(holders=(LockHolder("reader", "psql", "x", None),))),
    ("SW-DATABASE-CONNECTIONS", WARNING, ledger(connections=81, most_connected=("reader", 70))),
    ("SW-SACCTMGR-DUMP", HINT, way_back_checks(WayBackFacts("/x.cfg", False, "hpc"), "advise")),
    # the page
    ("SW-USER", ERROR, web(has_user=False)),
    ("SW-WEB-DOWN", ERROR, web(answered="nobody")),
    ("SW-WEB-TAKEN", ERROR, web(answered="another")),
    ("SW-FILE-RIGHTS", ERROR, web(needs=(Need(CLOSED, Person("web", 7), Right.READ, "no page"),))),
    ("SW-WEB-NAME", WARNING, web(shared_name="models.example.org")),
    ("SW-WEB-PLAIN", WARNING, web(is_plain=True)),
    ("SW-TOKEN-KEY", WARNING, host(tokens=replace(TOKENS, signed_by="/etc/slurm/other.key"))),
    ("SW-TOKEN-KEY", WARNING, host(tokens=replace(TOKENS, signed_by=""))),
    # daemons that are asked by https
    ("SW-CERTIFICATE", ERROR, certificate_checks([ShownCertificate("h:1", "has ended")], 0.0)),
    ("SW-CERTIFICATE", WARNING, certificate_checks([ShownCertificate("h:1", "", 86400.0)], 0.0)),
    # the daemon
    ("SW-RESTART", WARNING, daemon(version="0.0.9")),
    ("SW-RESTART", WARNING, daemon(mode="observe")),
    ("SW-DAEMON-RUNNING", WARNING, daemon(leads=False)),
    ("SW-DAEMON-DOWN", ERROR, daemon(lost_socket="/run/slicewise/admission/admission.sock")),
    ("SW-DAEMON-BLIND", ERROR, daemon(complete=False)),
    ("SW-DAEMON-BLIND", WARNING, daemon(looked_s=90.0)),
    # this host
    ("SW-FILE-RIGHTS", ERROR, host(files=(a_file(URL, "secret", 0o644),))),
    ("SW-FILE-RIGHTS", ERROR, host(files=(a_file(CONFIG_FILE, "own", 0o666),))),
    ("SW-FILE-RIGHTS", ERROR, host(files=(a_file(URL, "secret", 0o640, "olga"),))),
    ("SW-FILE-RIGHTS", ERROR, host(files=(FileFacts(OPEN, "own", ("root",)),))),
    ("SW-FILE-RIGHTS", ERROR, host(needs=(Need(CLOSED, SLURM, Right.READ, "no daemon"),))),
    ("SW-FILE-MISSING", ERROR, host(needs=(Need(LOST, SLURM, Right.READ, "no daemon", False),))),
    ("SW-ROOT", WARNING, host(needs=(Need(UNSEEN, SLURM, Right.READ, "no daemon"),))),
    ("SW-FILE-RIGHTS", ERROR, host(files=(replace(TOML, way=LED),))),
    ("SW-ROOT", WARNING, host(files=(FileFacts(UNSEEN, "own", ("root",)),))),
    ("SW-DISK-FULL", ERROR, host(spaces=(Space("/run/slicewise", "sockets", 0, 9 << 30),))),
    ("SW-PORT-HELD", ERROR, host(holders=(NGINX,), ports=(("[daemon] listen", "", 6830),))),
    ("SW-UNIT-OFF", WARNING, host(disabled=("slicewise-daemon.service",))),
    ("SW-CONF-DIFFERS", ERROR, host(confs=("/opt/slurm/etc/slurm.conf", "/etc/slurm/slurm.conf"))),
    ("SW-PACKAGE", ERROR, host(missing_files=("templates/engine.j2",))),
    ("SW-FILE-RIGHTS", ERROR, host(files=(replace(SECRET, holds_password=True),))),
    ("SW-KEY-LEFT", WARNING, key_checks((GONE, OLD, OWN), 5.0)),
    ("SW-USER", ERROR, host(users={"launcher_user=slicewise": False})),
    ("SW-MUNGE", ERROR, host(munge="munged does not answer.")),
    ("SW-HOST-PORTS", WARNING, host(client_ports=(1024, 60999))),
    ("SW-CLOCK-SKEW", ERROR, clock_checks({"slurmctld": -7.0, "PostgreSQL": 0.1})),
    ("SW-PROGRAM", ERROR, node_programs_checks(("unshare",), {})),
    ("SW-NODE-NAMESPACES", ERROR, node_programs_checks((), {"user.x": "1"})),
    ("SW-NODE-CACHE", WARNING, node_cache(None)),
    ("SW-NODE-CACHE", WARNING, node_cache(Inode("/local/w", 0o100644))),
    ("SW-NODE-CACHE", WARNING, node_cache(Inode("/local/w", 0o40777))),
    ("SW-NODE-CACHE", WARNING, node_cache(Inode("/local/w", 0o40755))),
    ("SW-NODE-CACHE", WARNING, node_cache(Inode("/local/w", 0o41777, 7, 7, "eve", "eve"))),
    ("SW-NODE-CACHE", WARNING, node_cache(above=Inode("/local", 0o40775))),
    ("SW-NODE-CACHE", WARNING, node_cache(above=Inode("/local", 0o40755, 7, 7, "eve", "eve"))),
    ("SW-NODE-CACHE", WARNING, node_cache(file_system="lustre")),
    ("SW-NODE-CACHE", HINT, node_cache(file_system="tmpfs")),
    ("SW-NODE-CACHE", WARNING, node_cache(file_system="tmpfs", given_mib=3001)),
    ("SW-NODE-CACHE", WARNING, node_cache(file_system="tmpfs", size_mib=0)),
    ("SW-NODE-CACHE", WARNING, node_cache(file_system="tmpfs", size_mib=4000)),
    ("SW-NODE-CACHE", WARNING, node_cache(home=Inode("/local/w/7", 0o40700, 8))),
    ("SW-NODE-CACHE", WARNING, node_cache(home=Inode("/local/w/7", 0o40755, 7))),
]


@pytest.mark.parametrize(("code", "severity", "found"), PLANTED)
def test_a_planted_fault_is_found_and_says_what_mends_it(
    code: str, severity: Severity, found: Iterable[Finding]
) -> None:
    found = tuple(found)
    assert {(one.code, one.severity) for one in found} == {(code, severity)}
    for one in found:
        assert one.what
        assert not one.what.endswith(".")
        assert one.mends or one.advice or code == "SW-LIMITS-BY-HAND"
        assert one.text.endswith(f"[{code}]")


def test_the_lines_keep_what_the_site_has_beside() -> None:
    found = (
        *conf(GresTypes="mps", RequeueExitHold="1,99"),
        *conf(SchedulerParameters="bf_continue,batch_sched_delay=3", JobSubmitPlugins="x"),
        *conf(PriorityFlags="MAX_TRES,FAIR_TREE"),
        *conf(PreemptType="preempt/none", PreemptMode="GANG"),
        *conf(MpiParams="disable_slurm_hydra_bootstrap", TaskPlugin="task/affinity,x"),
        *conf(SelectTypeParameters="CR_MEMORY,CR_LLN", PrioritySiteFactorPlugin="site_factor/x"),
        *partition(deny_qos=frozenset({"long"})),
    )
    assert {mend.line for one in found for mend in one.mends} == {
        "GresTypes=mps,gpu",
        "RequeueExitHold=1,99,187",
        "SchedulerParameters=bf_continue,batch_sched_delay=0,preempt_youngest_first",
        "JobSubmitPlugins=x,lua",
        "PriorityFlags=FAIR_TREE",
        "PreemptType=preempt/qos",
        "PreemptMode=GANG,REQUEUE",
        "MpiParams=ports=21000-21999,disable_slurm_hydra_bootstrap",
        "TaskPlugin=task/cgroup,task/affinity,task/x",
        "ConstrainDevices=yes",
        "SelectTypeParameters=CR_Core_Memory,CR_LLN",
        "# delete each line of PrioritySiteFactorPlugin",
    }


@pytest.mark.parametrize("mode", ["CANCEL", "GANG,SUSPEND", "GANG,CANCEL", "REQUEUE"])
def test_what_becomes_of_the_sites_own_preempted_jobs_stays(mode: str) -> None:
    """Borrowed QOS say REQUEUE themselves: with preempt/qos Slurm takes that before its own."""
    assert conf(PreemptMode=mode) == ()
    found = conf(PreemptMode=mode, PreemptType="preempt/partition_prio")
    assert [mend.line for one in found for mend in one.mends] == ["PreemptType=preempt/qos"]


def test_qos_that_begin_to_preempt_are_named_with_what_becomes_of_their_jobs() -> None:
    qos = (
        Qos("urgent", {}, frozenset({"scavenger", "bulk", "slicewise_a_borrowed"})),
        Qos("scavenger", {}, frozenset(), preempt_mode="cancel"),
        Qos("bulk", {}, frozenset()),
        Qos("slicewise_a", {}, frozenset({"slicewise_a_borrowed"})),
    )
    off = {**CONFIG, "PreemptType": "preempt/none", "PreemptMode": "OFF"}
    found = next(
        one
        for one in conf_checks(replace(FACTS, config=off, qos=qos), WANTED)
        if one.severity is HINT
    )
    assert found.what == "QOS urgent has a Preempt list: bulk, scavenger"
    assert [one.line for one in found.mends] == [
        "sacctmgr modify qos urgent set Preempt-=bulk,scavenger"
    ]
    assert "jobs of bulk is then" in found.advice
    assert "sacctmgr modify qos bulk set PreemptMode=cancel (or requeue)" in found.advice
    assert conf_checks(replace(FACTS, qos=qos), WANTED) == ()


def test_allocations_are_said_before_other_weights_eat_them() -> None:
    limits = (BillingLimit("GrpTRESMins", 500_000, 0, "physics", cluster="hpc"),)
    old = replace(GPU, billing_weights={"gres/gpu": 4.0})
    facts = replace(FACTS, partitions=(old,), billing_limits=limits)
    found = [one for one in partition_checks(facts, WANTED) if one.code == "SW-LIMITS-MINUTES"]
    assert "297.6 GPU-hours (2083.3 slice-hours) now, 1.19 GPU-hours" in found[0].what
    assert [one.line for one in found[0].mends] == ['billing_per_slice = "4"    # in [cluster]']
    settled = replace(FACTS, billing_limits=limits)
    assert partition_checks(settled, WANTED) == ()


def test_a_short_exemption_or_a_term_of_loans_is_the_sites_own_choice() -> None:
    assert conf(PreemptExemptTime="00:01:00") == conf(PreemptExemptTime="-1") == ()
    assert conf(replace(WANTED, term_s=900), PreemptExemptTime="1-00:00:00") == ()


def test_limits_by_hand_are_taken_back_each_by_itself() -> None:
    (found,) = bounded(MaxTRESPerUser="node=4,gres/gpu:1g.10gb=0")
    assert [one.line for one in found.mends] == [
        "sacctmgr modify qos slicewise_team set MaxTRESPerUser=node=-1,gres/gpu:1g.10gb=-1"
    ]


def test_rights_to_change_what_was_booked_are_taken_from_each_role() -> None:
    found = ledger(changers=(('"Olga K"', "seals"), ('"Olga K"', "transfers"), ("PUBLIC", "seals")))
    both = "slicewise.seals, slicewise.transfers"
    assert [mend.line for one in found for mend in one.mends] == [
        f"psql -c 'REVOKE UPDATE, DELETE, TRUNCATE ON {both} FROM \"Olga K\"'",
        "psql -c 'REVOKE UPDATE, DELETE, TRUNCATE ON slicewise.seals FROM PUBLIC'",
    ]


def test_the_reason_of_an_invalid_node_is_said() -> None:
    """sinfo -R, which was named, shows nothing of such a node."""
    (found,) = away("INVAL", "gres/gpu count reported lower than configured (0 < 7)")
    assert found.what.endswith("(gpu09: gres/gpu count reported lower than configured (0 < 7))")


def test_plugins_may_be_named_with_their_kind() -> None:
    assert conf(JobSubmitPlugins="job_submit/throttle,job_submit/lua") == ()


def test_lines_for_the_settings_are_toml_and_name_their_section() -> None:
    mends = [
        mend
        for *_, found in PLANTED
        if isinstance(found, tuple)
        for one in found
        for mend in one.mends
    ]
    lines = [mend.line for mend in mends if mend.place is Place.SETTINGS]
    assert 'name = "other"    # in [cluster]' in lines
    assert "max = 20000    # in [priority]" in lines
    for line in lines:
        (key,) = tomllib.loads(line)
        assert "[" not in key
        assert "    # in [" in line


def test_a_folder_that_each_user_has_a_place_in_is_fine() -> None:
    assert list(node_cache()) == []


def test_a_folder_for_copies_is_made_by_systemd() -> None:
    (missing,) = node_cache(None)
    conf = "/etc/tmpfiles.d/slicewise-node-cache.conf"
    assert [mend.line for mend in missing.mends] == [
        f"echo 'd /local/w 1777 root root -' >{conf}",
        f"systemd-tmpfiles --create {conf}",
    ]


def test_memory_that_copies_take_is_taken_out_of_what_slurm_gives() -> None:
    (warned,) = node_cache(file_system="tmpfs", given_mib=4000)
    assert [mend.line for mend in warned.mends] == [
        "# add to the line of node n1: RealMemory=3000, in place of its own"
    ]
    (left,) = node_cache(file_system="tmpfs", given_mib=3000)
    assert left.mends == ()


def test_a_path_is_no_package() -> None:
    (found,) = node_programs_checks(("/opt/venv/bin/python",), {})
    assert found.mends == ()
    assert "[engines]" in found.advice


def test_before_enforce_the_gate_is_no_line_to_add() -> None:
    (found,) = partition(IN_OBSERVE, qos="")
    assert found.mends == ()
    assert "slurmctld exits" in found.advice
    (found,) = partition(qos="")
    assert [mend.line for mend in found.mends] == [
        "# add to the line of partition gpu: QOS=slicewise_gate"
    ]
    closed = replace(found, code="SW-PARTITION-GATE")
    assert by_mode(closed, "enforce") == closed
    assert by_mode(closed, "advise").severity is HINT


def test_a_change_of_select_type_says_that_jobs_are_lost() -> None:
    (linear,) = conf(SelectType="select/linear")
    assert "loses all jobs" in linear.advice
    (older,) = conf(SelectType="select/cons_res")
    assert older.mends == linear.mends
    assert older.advice == ""


def test_weights_below_a_tenth_or_with_age_above_them_are_all_right() -> None:
    assert conf(PriorityWeightQOS="900") == ()
    assert conf(PriorityWeightQOS="3000", PriorityWeightAge="4000") == ()


def test_ports_that_the_kernel_keeps_are_all_right() -> None:
    assert host(client_ports=(1024, 60999), kept_ports=PORTS) == ()
    assert reserved_ports(FACTS) == PORTS


def test_a_mode_of_files_keeps_what_their_owner_may_do() -> None:
    (found,) = host(files=(a_file("/etc/slicewise", "own", 0o777),))
    assert [mend.line for mend in found.mends] == ["chmod 0755 /etc/slicewise"]
    (found,) = host(files=(a_file(URL, "secret", 0o644),))
    assert [mend.line for mend in found.mends] == ["chmod 0640 /etc/slicewise/database-url"]


def test_a_standby_that_is_there_or_not_waited_for_is_all_right() -> None:
    names = {**LEDGER.settings, "synchronous_standby_names": "*"}
    assert ledger(settings={**names, "synchronous_commit": "on"}, standbys=1) == ()
    assert ledger(settings={**names, "synchronous_commit": "local"}) == ()


def test_nothing_is_said_of_power_saving_where_slurm_ends_no_node() -> None:
    short = {"ResumeTimeout": "60 sec", "SuspendTime": "INFINITE", "ReturnToService": "0"}
    assert conf(**short, SuspendProgram="(null)", ResumeProgram="(null)") == ()
    longer = {"ResumeTimeout": "600 sec", "SuspendTime": "INFINITE", "ReturnToService": "2"}
    assert conf(**POWER_SAVING, **longer) == ()


def test_partitions_that_spread_jobs_are_named_where_power_is_saved() -> None:
    spread = replace(GPU, words=frozenset({"LLN=YES"}))
    others = PartitionView("cpu", {}, "", words=frozenset({"LLN=YES"}))
    facts = replace(FACTS, partitions=(spread, others))
    saving = replace(facts, config={**CONFIG, **POWER_SAVING})
    (said,) = conf_checks(saving, WANTED)
    assert (said.code, said.severity) == ("SW-CONF-POWER-SAVING", HINT)
    assert [mend.line for mend in said.mends] == [
        "# take out of the line of partition gpu: LLN=YES"
    ]
    assert conf_checks(facts, WANTED) == ()
    assert partition_checks(saving, WANTED) == ()
