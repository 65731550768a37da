"""Each line that Slicewise proposes for slurm.conf is read by a real slurmctld.

slurmctld, every slurmd and every command end at a line that they can't read, on the whole cluster.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import cycle, product
from pathlib import Path

import pytest
from builders.nodes import a_node
from free_ports import free_port
from waiting import until

from slicewise.cluster.language.billing import MILLISLICES
from slicewise.cluster.language.file_access import Inode
from slicewise.cluster.language.findings import Finding, Place, deletion, key_of
from slicewise.cluster.language.jobs import PartitionView
from slicewise.cluster.language.slurm.billing_limits import BillingLimit
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.packages import SEARCH_PATH
from slicewise.slurm_plugin.rules.site.conf_checks import conf_checks
from slicewise.slurm_plugin.rules.site.facts import NodeCacheFacts, SlurmFacts, TokenFacts, Wanted
from slicewise.slurm_plugin.rules.site.host_checks import node_cache_checks
from slicewise.slurm_plugin.rules.site.partition_checks import partition_checks
from slicewise.slurm_plugin.rules.site.proposed_files import conf_text
from slicewise.slurm_plugin.rules.site.token_checks import token_checks
from slicewise.slurm_plugin.rules.slurm_config.allocations import SliceBilling, raised
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import closed_to_qos, conf_lines

pytestmark = pytest.mark.integration

PROJECT = Path(__file__).resolve().parents[2]
COSTS = {"1g.10gb": 1000, "nvidia_a100_3g.39gb": 3500}
OURS = ("slicewise_a", "slicewise_a_borrowed")
WANTED = Wanted("c", ("gpu",), "observe", "root", COSTS, asks_by_munge=True, servers=64)
BASE = """\
ClusterName=c
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
StateSaveLocation={place}/state
SlurmctldPidFile={place}/slurmctld.pid
SlurmdSpoolDir={place}/spool
AuthInfo=socket={munge}
NodeName=n1 CPUs=1 RealMemory=4000 State=UNKNOWN Gres=gpu:1g.10gb:7
PartitionName=gpu Nodes=n1 AllowQos=x
PartitionName=cpu Nodes=n1 TRESBillingWeights=CPU=1.0,Mem=0.25G
Include {place}/more.conf
"""
OF_OTHERS = re.compile("AccountingStorage|TRESBillingWeights|AuthAlt")
SCRIPT = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
"""
OF_SLURM_CONF = re.compile(
    r"^((?:GresTypes|NodeName=\w+ Gres|AccountingStorage\w+|PartitionName|PrivateData"
    r"|PriorityFlags|Preempt\w+|SchedulerParameters|MpiParams|TaskPlugin"
    r"|ResumeTimeout|ReturnToService|Suspend\w+)=.*)$",
    re.MULTILINE,
)
"""Lines for slurm.conf in pages, of which "..." stands for what is there."""
FLAGS = (
    *("", "MAX_TRES", "max_tres", "MAX_TRES,NO_FAIR_TREE", "ACCRUE_ALWAYS,MAX_TRES,FAIR_TREE"),
    "FAIR_TREE",
)
PREEMPTION = (
    *(("preempt/none", "OFF"), ("preempt/none", "GANG"), ("preempt/qos", "CANCEL")),
    *(("preempt/qos", "REQUEUE"), ("preempt/qos", "GANG,SUSPEND")),
    *(("preempt/partition_prio", "GANG,SUSPEND"), ("preempt/partition_prio", "CANCEL")),
)
BESIDE: Mapping[str, Sequence[str]] = {
    "AccountingStorageEnforce": ("", "associations", "limits,safe", "Associations,LIMITS"),
    "AccountingStorageTRES": ("", "gres/gpu", "gres/gpu,license/x", "cpu,gres/gpu:1g.10gb"),
    "AllowSpecResourcesUsage": ("", "YES"),
    "GresTypes": ("gpu", "gpu,mps", "mps,shard,gpu"),
    "JobRequeue": ("", "0"),
    "JobSubmitPlugins": ("", "lua", "require_timelimit", "job_submit/lua", "throttle,lua"),
    "KillWait": ("", "2", "600"),
    "LaunchParameters": ("", "mpir_use_nodeaddr", "batch_step_set_cpu_freq,test_exec"),
    "MaxArraySize": ("", "16"),
    "MaxJobCount": ("", "500"),
    "MinJobAge": ("", "10"),
    "MpiParams": ("", "ports=21000-21010", "ports=20000-20010,20020-20030", "x"),
    "PriorityType": ("", "priority/multifactor"),
    "PriorityWeightQOS": ("", "20000"),
    "PrivateData": ("", "none", "jobs"),
    "ProctrackType": ("proctrack/linuxproc",),
    "RequeueExitHold": ("", "9", "1-5,99"),
    "SchedulerParameters": ("", "defer", "bf_window=60,batch_sched_delay=9,bf_continue"),
    "SelectType": ("select/cons_tres",),
    "SelectTypeParameters": ("CR_Core", "CR_Memory,CR_LLN", "CR_CPU_Memory", "CR_Core,CR_LLN"),
    "TaskPlugin": ("task/none", "task/affinity"),
}


def sites() -> Iterator[Mapping[str, str]]:
    """What sites have written: nothing, one word, many, in any case; each value some time."""
    beside = {key: cycle(values) for key, values in BESIDE.items()}
    for flags, (kind, mode) in product(FLAGS, PREEMPTION):
        first = {"PriorityFlags": flags, "PreemptType": kind, "PreemptMode": mode}
        yield {**first, **{key: next(values) for key, values in beside.items()}}


@dataclass(frozen=True)
class Conf:
    """A slurm.conf, of which a part is in a file that it includes."""

    place: Path
    munge: Path

    def site(self, site: Mapping[str, str]) -> None:
        """The site's settings twice: some sites have lines in both files."""
        lines = "".join(f"{key}={value}\n" for key, value in site.items() if value)
        main = BASE.format(place=self.place, munge=self.munge)
        (self.place / "slurm.conf").write_text(main + lines)
        (self.place / "more.conf").write_text(f"# The site's.\n{lines}")

    def apply(self, lines: Sequence[str]) -> None:
        """As the words above the lines say."""
        for line in lines:
            self._apply(line)

    def _apply(self, line: str) -> None:
        added = re.match("# add to the line of (partition|node) ([^:]+): ", line)
        gone = "# take out of the line of partition "
        if added:
            words = line[added.end() :].removesuffix(", in place of its own")
            kind = {"partition": "PartitionName", "node": "NodeName"}[added[1]]
            self._change(f"{kind}={added[2]} ", words.partition("=")[0], words)
        elif line.startswith(gone):
            name, _, key = line.removeprefix(gone).partition(": ")
            self._change(f"PartitionName={name} ", key, "")
        elif key_of(line) != line:
            self._set(key_of(line), "")
        elif not (line := line.removeprefix("# if you choose so: ")).startswith("#"):
            self._set(line.partition("=")[0], line)

    def _set(self, key: str, line: str) -> None:
        for name in ("slurm.conf", "more.conf"):
            file = self.place / name
            begin = f"{key.lower()}="
            kept = [
                one for one in file.read_text().splitlines() if not one.lower().startswith(begin)
            ]
            file.write_text("\n".join((*kept, "")))
        if line:
            with (self.place / "slurm.conf").open("a") as file:
                file.write(f"{line}\n")

    def _change(self, begin: str, key: str, words: str) -> None:
        file = self.place / "slurm.conf"
        lines = file.read_text().splitlines()
        for number, line in enumerate(lines):
            if line.startswith(begin):
                kept = [w for w in line.split(" ") if not w.lower().startswith(f"{key.lower()}=")]
                lines[number] = " ".join(filter(None, (*kept, words)))
        file.write_text("\n".join((*lines, "")))

    def append(self, lines: Sequence[str]) -> None:
        """As who only joins the files."""
        with (self.place / "slurm.conf").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def read_by_commands(self) -> str:
        """What a command of Slurm says that reads it; "" if it can."""
        return self._said(("scontrol", "show", "hostnames", "n1"))

    def _said(self, argv: Sequence[str]) -> str:
        environment = {"PATH": SEARCH_PATH, "SLURM_CONF": str(self.place / "slurm.conf")}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
        return done.stderr if done.returncode else ""

    def read_by_slurmctld(self, port: int) -> str:
        """The last words of a slurmctld that starts with it; "" once it controls the cluster."""
        self._set("SlurmctldPort", f"SlurmctldPort={port}")
        (self.place / "state").mkdir(exist_ok=True)
        environment = {"PATH": SEARCH_PATH, "SLURM_CONF": str(self.place / "slurm.conf")}
        said: list[str] = []
        with subprocess.Popen(
            ("slurmctld", "-D", "-c", "-i"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        ) as server:
            assert server.stdout is not None
            for line in server.stdout:
                said.append(line)
                if "Running as primary controller" in line:
                    server.kill()
                    return ""
        return "".join(said[-5:])


@pytest.fixture
def conf(sandbox: Sandbox, tmp_path: Path) -> Conf:
    """In an empty folder, with the sandbox's munged."""
    return Conf(tmp_path, sandbox.layout.munge_socket)


def found(site: Mapping[str, str]) -> tuple[Finding, ...]:
    """What setup and doctor find of the site, as slurmctld shows it."""
    shown = {"ClusterName": "other", "SlurmUser": "root(0)", "SLURM_VERSION": "22.05.8"}
    config = {**shown, **{key: value or "(null)" for key, value in site.items()}}
    views = (
        PartitionView("gpu", {}, "", has_default_memory=False, max_time_s=10**6),
        PartitionView("cpu", {"cpu": 1.0, "mem": 0.25 / 1024}, ""),
    )
    node = a_node("n1", memory_mib=4000)
    facts = SlurmFacts(config, views, (node,))
    in_memory = NodeCacheFacts("/w", Inode("/w", 0o41777), "tmpfs", size_mib=1000, memory_mib=4000)
    tokens = TokenFacts(known_by="/k", auth_alt=config)
    closed = (
        PartitionView("gpu", {}, "", allow_qos=frozenset({"x"})),
        PartitionView("gpu", {}, "", deny_qos=frozenset({"x", *OURS})),
        PartitionView("gpu", {}, "", deny_qos=frozenset(OURS)),
    )
    return (
        *conf_checks(facts, WANTED),
        *partition_checks(facts, WANTED),
        *token_checks(tokens),
        *node_cache_checks(in_memory, node),
        *(one for view in closed for one in closed_to_qos([view], ["gpu"], OURS)),
    )


def lines_of(findings: Sequence[Finding]) -> list[str]:
    return [mend.line for one in findings for mend in one.mends if mend.place is Place.SLURM_CONF]


@pytest.mark.promise("A line that is proposed for slurm.conf ends no slurmctld and no command.")
def test_commands_read_what_is_proposed_for_every_site(conf: Conf) -> None:
    """By doctor --fix and by setup, in place of the site's lines and only joined to them."""
    for site in sites():
        findings = found(site)
        proposed = lines_of(findings)
        assert not [line for line in proposed if line.endswith("=")]
        from_setup = conf_text(findings, Place.SLURM_CONF).splitlines()
        for lines in (proposed, from_setup):
            conf.site(site)
            conf.apply(lines)
            assert conf.read_by_commands() == "", (site, lines)
        conf.site(site)
        conf.append(from_setup)
        assert conf.read_by_commands() == "", (site, from_setup)


@pytest.mark.parametrize("nth", [0, 13])
def test_slurmctld_starts_with_what_is_proposed(conf: Conf, nth: int) -> None:
    """Without what wants slurmdbd, of which each cluster needs its own, or a key file."""
    site = [*sites()][nth]
    conf.site(site)
    conf.apply([line for line in lines_of(found(site)) if not OF_OTHERS.search(line)])
    conf.apply([deletion(Place.SLURM_CONF, key).line for key in site if OF_OTHERS.search(key)])
    (conf.place / "job_submit.lua").write_text(SCRIPT)
    assert conf.read_by_slurmctld(free_port()) == ""


def test_the_lines_of_compile_and_of_the_pages_are_read(conf: Conf) -> None:
    conf.site({})
    conf.apply(conf_lines(["gpu"], COSTS, MILLISLICES))
    assert conf.read_by_commands() == ""
    conf.append(conf_lines(["gpu"], COSTS, MILLISLICES))
    assert conf.read_by_commands() == ""
    lines = [
        line.strip().replace("...,", "").replace(" ...", "")
        for page in sorted((PROJECT / "docs").rglob("*.md"))
        for line in re.findall(OF_SLURM_CONF, page.read_text())
    ]
    assert lines
    for line in lines:
        conf.site({})
        words = re.sub("^PartitionName=gpu ", "# add to the line of partition gpu: ", line)
        conf.apply([words])
        assert conf.read_by_commands() == "", line


def test_the_lines_of_the_example_are_read(conf: Conf) -> None:
    """Those too that a site is to uncomment."""
    snippet = (PROJECT / "etc" / "slurm.conf.snippet").read_text()
    lines = [re.sub(r"^#(?=[A-Z]\w+=)", "", line) for line in snippet.splitlines()]
    conf.site({})
    conf.apply([line for line in lines if not line.startswith("PartitionName=gpu ")])
    conf.append(["NodeName=gpu[01-04]", *(one for one in lines if one.startswith("PartitionName"))])
    main = (conf.place / "slurm.conf").read_text().replace("PartitionName=gpu Nodes=n1 \n", "")
    (conf.place / "slurm.conf").write_text(main)
    assert conf.read_by_commands() == ""


@pytest.fixture
def granted(sandbox: Sandbox) -> Iterator[Sandbox]:
    """Limits on billing of an account, a user of it and a QOS."""
    user = sandbox.state.users["carol"].name
    account = ("account", "where", "name=guest", "cluster=sandbox", "set")
    of_user = ("user", "where", f"name={user}", "account=guest", "cluster=sandbox", "set")
    changes = (
        (*account, "GrpTRESMins=billing=500000", "GrpTRES=billing=64000"),
        (*of_user, "GrpTRESMins=billing=60000"),
        ("qos", "normal", "set", "GrpTRESMins=billing=120000"),
    )
    for change in changes:
        sandbox.run("root", ("sacctmgr", "-i", "modify", *change))
    yield sandbox
    for change in changes:
        undone = [re.sub(r"billing=\d+", "billing=-1", word) for word in change]
        sandbox.run("root", ("sacctmgr", "-i", "modify", *undone))


def test_what_is_left_of_allocations_is_read_from_slurmctld(granted: Sandbox) -> None:
    answers = granted.layout.directory / "answers.toml"
    answers.write_text('gateway = "head"\n')
    output = granted.layout.directory / "proposed"
    argv = ("slicewise", "setup", "--answers", str(answers), "--output", str(output))

    def said() -> str:
        shutil.rmtree(output, ignore_errors=True)
        return granted.run("root", argv).stdout

    wanted = (
        r"Account guest: GrpTRES=billing=64000, 9\.14 GPUs \(64 slices\) now, 9\.14 GPUs",
        r"Account guest: GrpTRESMins=billing=500000, of which \d+ are left: \S+ GPU-hours",
        r"User \w+ of guest: GrpTRESMins=billing=60000, of which \d+ are left: \S+ GPU-hours",
        r"QOS normal: GrpTRESMins=billing=120000, of which \d+ are left: \S+ GPU-hours \(",
    )
    # slurmctld hears of changes of slurmdbd a moment later.
    until(lambda: all(re.search(one, said()) for one in wanted))
    for limit in (
        BillingLimit("GrpTRESMins", 60_000, 0, "guest", granted.state.users["carol"].name),
        BillingLimit("GrpTRES", 64_000, 0, "guest"),
        BillingLimit("GrpTRESMins", 120_000, 0, qos="normal"),
    ):
        here = limit if limit.qos else replace(limit, cluster="sandbox")
        (command,) = raised(here, SliceBilling(Fraction(1000), Fraction(2000)))
        changed = granted.run("root", ("sacctmgr", "-i", *command.split()[1:]))
        assert "Modified" in changed.stdout, command
