"""Tests slicewise doctor: its sections, what it accepts, --fix, --json and exit codes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from stand_ins.daemon_answers import answer_in_its_place
from stand_ins.doctors_slurm import CONSTRAINED, settings, slurm_has, slurm_is, two_gpus
from stand_ins.emulated_gpus import FaultyDriver
from typer.testing import CliRunner, Result

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.exit_codes import ExitCode
from slicewise.cluster.language.file_access import Inode, Need, Person, Right, Way
from slicewise.cluster.language.findings import Mend, Place, error, hint, warning
from slicewise.cluster.language.host_findings import Holder, Space
from slicewise.cluster.language.jobs import NodeView, PartitionView
from slicewise.cluster.rpc.messages import ViewAnswer, ViewRequest
from slicewise.launcher.cli import gateway_report
from slicewise.launcher.cli.doctor import doctor
from slicewise.launcher.cli.show_findings import fix_text
from slicewise.launcher.rules.gateway.checks import (
    CertificateFacts,
    GatewayFacts,
    IdentityFacts,
    gateway_checks,
)
from slicewise.slurm_plugin.cli.commands import doctor as site_report

ALL = {"1g.10gb": 1, "nvidia_a100_3g.40gb": 1, "nvidia_h200": 1}

app = typer.Typer()
app.command()(doctor)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDriver]:
    def away(_: object) -> ViewAnswer:
        raise UnreachableError("SW-DAEMON-DOWN", "It does not answer.")

    answer_in_its_place(monkeypatch, ViewRequest, away)
    yield from two_gpus(tmp_path, monkeypatch)


def run(*args: str) -> Result:
    return CliRunner().invoke(app, args)


def found(*args: str) -> dict[str, str]:
    """The texts of what it finds, by code."""
    sections = json.loads(run(*args, "--json").stdout)["sections"]
    return {f["code"]: f["what"] for one in sections for f in one["findings"]}


OF_NODE = ("--section", "nodes", "--node", "gpu07")


def test_it_is_content_with_a_node_that_slurm_has_as_it_is(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_has(monkeypatch, ALL)
    result = run(*OF_NODE)
    assert result.exit_code == 0
    assert "gpu:nvidia_h200 is not a type of [gpus]" in result.stdout
    assert set(found(*OF_NODE)) == {"SW-NODE-PRICE"}


def test_it_finds_what_would_drain_the_node(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_has(monkeypatch, {**ALL, "1g.10gb": 7})
    result = run(*OF_NODE, "--json")
    assert result.exit_code == 1
    (fault,) = json.loads(result.stdout)["faults"]
    assert fault.startswith("Slurm expects 7 gpu:1g.10gb, but the node has 1:")


def test_it_finds_a_partition_that_does_not_take_the_tenants_jobs(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_has(monkeypatch, ALL, allow_qos=frozenset({"normal", "slicewise_vision"}))
    said = found("--section", "partitions")["SW-PARTITION-GATE"]
    assert said == "Partition gpu has AllowQos without slicewise_vision_borrowed"
    # Before mode enforce it is the site's, and no gate keeps others out yet.
    (report,) = json.loads(run("--section", "partitions", "--json").stdout)["sections"]
    (closed,) = [one for one in report["findings"] if one["code"] == "SW-PARTITION-GATE"]
    assert (closed["severity"], closed["mends"]) == ("hint", [])
    both = frozenset({"slicewise_vision", "slicewise_vision_borrowed"})
    slurm_has(monkeypatch, ALL, allow_qos=both)
    assert "SW-PARTITION-GATE" not in found("--section", "partitions")
    slurm_has(monkeypatch, ALL, deny_qos=frozenset({"long", "slicewise_vision"}))
    said = found("--section", "partitions")["SW-PARTITION-GATE"]
    assert said == "Partition gpu has DenyQos with slicewise_vision"


@pytest.mark.usefixtures("clock")
def test_without_slurm_it_says_so_and_looks_at_the_rest(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slurm:
        async def nodes(self) -> tuple[NodeView, ...]:
            raise UnreachableError("SW-SLURM-DOWN", "slurmctld does not answer.\nMore of it.")

        async def config(self) -> dict[str, str]:
            return {}

        async def partitions(self) -> tuple[PartitionView, ...]:
            return ()

    slurm_is(monkeypatch, Slurm())
    result = run("--node", "gpu07")
    assert result.exit_code == 1
    assert "slurmctld does not answer. More of it." in result.stdout
    assert "partitions: Slurm does not answer" in result.stdout
    assert set(found("--node", "gpu07")) >= {"SW-SLURM-DOWN", "SW-NODE-PRICE", "SW-USER"}


def test_the_example_of_the_package_is_no_sites_settings(
    node: FaultyDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor compared Slurm with a cluster that is none, and asked for its GPU types."""
    monkeypatch.setattr(site_report, "_EXAMPLE", tmp_path / "slicewise.toml")
    slurm_has(monkeypatch, {**ALL, "nvidia_a100_1g.10gb": 1})
    shown = json.loads(run("--node", "gpu07", "--json").stdout)["sections"]
    assert [one["section"] for one in shown] == ["settings", "nodes", "gateway", "engines"]
    assert "is an example as yet" in shown[0]["skipped"]
    slurm_has(monkeypatch, {})
    (finding,) = json.loads(run("--json").stdout)["faults"]
    assert "is the example that came with the package" in finding
    assert "slicewise setup" in finding


def test_a_node_without_settings_has_its_gpus_looked_at(
    node: FaultyDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_has(monkeypatch, {**ALL, "nvidia_a100_1g.10gb": 1})
    (tmp_path / "slicewise.toml").unlink()
    result = run("--node", "gpu07", "--json")
    shown = json.loads(result.stdout)["sections"]
    assert [one["section"] for one in shown] == ["settings", "nodes"]
    assert "is not here: only this node's GPUs" in shown[0]["skipped"]


@pytest.mark.parametrize("small", ["1g.10gb", "nvidia_a100_1g.10gb"])
def test_without_settings_types_are_called_as_slurm_calls_them(
    node: FaultyDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: str
) -> None:
    """A site that writes gres.conf by hand has short names: all of them seemed to be missing."""
    slurm_has(monkeypatch, {small: 1, "3g.40gb": 1, "nvidia_h200": 1})
    (tmp_path / "slicewise.toml").unlink()
    shown = json.loads(run("--node", "gpu07", "--json").stdout)["sections"]
    assert [one["code"] for one in shown[1]["findings"]] == []


def test_settings_that_can_not_be_read_are_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(tmp_path, monkeypatch, "[nonsense]\n")
    slurm_has(monkeypatch, {})
    result = run("--json")
    assert result.exit_code == 1
    assert "[SW-SETTINGS]" in json.loads(result.stdout)["faults"][0]


def test_what_the_site_accepts_is_counted_and_not_shown(
    node: FaultyDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_has(monkeypatch, ALL)
    settings(tmp_path, monkeypatch, '[doctor]\naccept = ["SW-NODE-PRICE", "SW-CONF-PRIVATE"]\n')
    result = run(*OF_NODE)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "accepted by slicewise.toml: SW-NODE-PRICE",
        "Looked at nodes: nothing to mend.",
    ]
    assert json.loads(run(*OF_NODE, "--json").stdout)["accepted"] == ["SW-NODE-PRICE"]


def test_a_section_that_does_not_exist_is_refused(node: FaultyDriver) -> None:
    result = run("--section", "gpus")
    assert result.exit_code == 2
    assert "choose of settings, slurm" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ((), ExitCode.DONE),
        ((hint("SW-A", "a"),), ExitCode.DONE),
        ((hint("SW-A", "a"), warning("SW-B", "b")), ExitCode.WARNED),
        ((warning("SW-B", "b"), error("SW-C", "c")), ExitCode.FAILED),
    ],
)
def test_the_exit_code_follows_the_worst(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch, findings: Any, code: ExitCode
) -> None:
    slurm_has(monkeypatch, ALL)
    monkeypatch.setattr(site_report, "node_findings", lambda *_: findings)
    assert run(*OF_NODE).exit_code == code


def test_fix_prints_each_line_once_in_the_order_to_apply_them() -> None:
    conf, restarted = Mend(Place.SLURM_CONF, "KillWait=30"), "systemctl restart slurmctld"
    commands = Mend(Place.ACCOUNTS, "sacctmgr add qos x"), Mend(Place.HOST, "chmod 0640 /f")
    text = fix_text((error("SW-A", "a", "", *commands, conf), hint("SW-B", "b", "", conf)))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines == ["chmod 0640 /f", "KillWait=30", "scontrol reconfigure", "sacctmgr add qos x"]
    ports = Mend(Place.SLURM_CONF, "MpiParams=ports=21000-21999")
    assert restarted in fix_text((error("SW-A", "a", "", ports),))
    assert "# Ask. Do it. [SW-C]" in fix_text((error("SW-C", "Ask", advice="Do it."),))
    assert fix_text(()) == "# nothing to mend\n"


def test_fix_writes_the_script_before_slurm_is_told_of_it() -> None:
    plugin = Mend(Place.SLURM_CONF, "JobSubmitPlugins=lua")
    script = Mend(Place.SCRIPT, "slicewise admission install")
    found = (
        error("SW-A", "a", "", plugin, advice="Write it first."),
        error("SW-B", "b", "", script),
    )
    lines = [line for line in fix_text(found).splitlines() if line]
    assert lines == [
        "# job_submit.lua, on slurmctld's host",
        "slicewise admission install",
        "# slurm.conf, with all that it includes: in place of each line of that key",
        "# Write it first.",
        "JobSubmitPlugins=lua",
        "# make Slurm read them",
        "systemctl restart slurmctld",
        "systemctl restart slurmd    # on all nodes; running jobs go on",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("AccountingStorageEnforce=associations,limits,qos", "running jobs go on"),
        ("AccountingStorageTRES=gres/gpu", "running jobs go on"),
        ("# delete each line of PrioritySiteFactorPlugin", "running jobs go on"),
        ("SelectType=select/cons_tres", "see above"),
        ("ProctrackType=proctrack/cgroup", "see above"),
        ("SchedulerParameters=defer,preempt_youngest_first", "running jobs go on"),
    ],
)
def test_fix_restarts_slurm_where_that_is_needed(line: str, said: str) -> None:
    advice = "Set it while no job runs."
    text = fix_text((error("SW-A", "a", "", Mend(Place.SLURM_CONF, line), advice=advice),))
    assert f"# {advice}\n{line}\n" in text
    assert "systemctl restart slurmctld\n" in text
    assert said in text
    assert "reconfigure" not in text


def test_fix_runs_nothing(node: FaultyDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_has(monkeypatch, {**ALL, "1g.10gb": 7})
    result = run(*OF_NODE, "--fix")
    assert result.exit_code == 1
    assert "slicewise node gres --node gpu07" in result.stdout.splitlines()


GATEWAY = GatewayFacts(
    ends_s={"/g/identity.pem": 9e9}, version="2.6.12-1", loaded_s=90.0, launcher_s=50.0
)
SHOWN = CertificateFacts("/g/gateway.pem", "gateway.example.org", ends_s=9e9)
IDENTITY = IdentityFacts("/etc/slicewise/gateway.crt")
NGINX = Holder("::", 8080, 71, "nginx", "www-data")
CLOSED = Need(
    Way("/g/statistics.sock", (Inode("/g", 0o40700),), Inode("/g/statistics.sock", 0o140666)),
    Person("haproxy", 7),
    Right.WRITE,
    "no statistics",
)


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("SW-GATEWAY-STALE", replace(GATEWAY, stale=("haproxy.cfg",))),
        ("SW-CERTIFICATE", replace(GATEWAY, ends_s={"/c.pem": 5.0})),
        ("SW-CERTIFICATE", replace(GATEWAY, ends_s={"/c.pem": 7 * 86400.0})),
        ("SW-VERSION", replace(GATEWAY, version="2.4.22")),
        ("SW-GATEWAY-STALE", replace(GATEWAY, rendered_s=99.0)),
        ("SW-GATEWAY-DOWN", replace(GATEWAY, rendered_s=99.0, is_other=True)),
        ("SW-LAUNCHER-DOWN", replace(GATEWAY, launcher_s=None)),
        ("SW-LAUNCHER-DOWN", replace(GATEWAY, stopped=(71,))),
        ("SW-RESTART", replace(GATEWAY, program_s=60.0)),
        ("SW-GATEWAY-FILES", replace(GATEWAY, rendered_files=20_000, running_files=4095)),
        ("SW-GATEWAY-MASTER", replace(GATEWAY, has_master=False)),
        ("SW-GATEWAY-PORT", replace(GATEWAY, bind="0.0.0.0:8080", held="127.0.0.1:8080")),
        ("SW-GATEWAY-PORT", replace(GATEWAY, bind="*:8081", held="0.0.0.0:8080")),
        ("SW-GATEWAY-PORT", replace(GATEWAY, bind="*:8080", holders=(NGINX,))),
        ("SW-GATEWAY-PORT", replace(GATEWAY, answered="nobody")),
        ("SW-GATEWAY-PORT", replace(GATEWAY, answered="status 404 nginx")),
        ("SW-CERTIFICATE", replace(GATEWAY, certificate=replace(SHOWN, problem="mismatch"))),
        ("SW-CERTIFICATE", replace(GATEWAY, certificate=replace(SHOWN, ends_s=0.0))),
        ("SW-CERTIFICATE", replace(GATEWAY, certificate=replace(SHOWN, ends_s=9 * 86400.0))),
        ("SW-CERTIFICATE", replace(GATEWAY, certificate=replace(SHOWN, is_named=False))),
        ("SW-CERTIFICATE", replace(GATEWAY, certificate=replace(SHOWN, is_issuer_known=False))),
        ("SW-CERTIFICATE", replace(GATEWAY, certificate=replace(SHOWN, is_shown=False))),
        ("SW-GATEWAY-IDENTITY", replace(GATEWAY, identity=replace(IDENTITY, is_there=False))),
        ("SW-GATEWAY-IDENTITY", replace(GATEWAY, identity=replace(IDENTITY, is_own=False))),
        ("SW-GATEWAY-IDENTITY", replace(GATEWAY, identity=replace(IDENTITY, is_certificate=False))),
        ("SW-FILE-RIGHTS", replace(GATEWAY, needs=(CLOSED,))),
        ("SW-DISK-FULL", replace(GATEWAY, spaces=(Space("/g", "the gateway's", 0, 9 << 30),))),
        ("SW-UNIT-OFF", replace(GATEWAY, disabled=("haproxy.service",))),
    ],
)
def test_a_planted_fault_of_the_gateway_is_found(code: str, facts: GatewayFacts) -> None:
    assert gateway_checks(GATEWAY, "", 100.0) == ()
    (one,) = gateway_checks(facts, " --user haproxy", 100.0)
    assert one.code == code
    assert one.mends or one.advice


def test_a_gateway_with_certificates_of_its_own_has_nothing_to_mend() -> None:
    good = replace(GATEWAY, bind="*:8080", certificate=SHOWN, identity=IDENTITY)
    assert gateway_checks(good, "", 100.0) == ()
    haproxy = replace(NGINX, program="haproxy", user="root")
    assert gateway_checks(replace(good, holders=(NGINX, haproxy)), "", 100.0) == ()


@pytest.mark.parametrize(("rendered", "running"), [(4096, 4095), (1000, 999), (4096, 0), (0, 9)])
def test_open_files_that_haproxy_rounds_or_does_not_say_are_enough(
    rendered: int, running: int
) -> None:
    facts = replace(GATEWAY, rendered_files=rendered, running_files=running)
    assert gateway_checks(facts, "", 100.0) == ()


def test_a_launcher_of_another_user_is_named() -> None:
    (found,) = gateway_checks(replace(GATEWAY, launcher_s=None, launchers_as=("root",)), "", 100.0)
    assert found.what.endswith("as [daemon] launcher_user; one runs as root")


def test_systemd_and_haproxy_may_write_any_address_in_their_own_way() -> None:
    facts = replace(GATEWAY, bind="*:8080", held="0.0.0.0:8080")
    assert gateway_checks(facts, "", 100.0) == ()


def test_a_gateway_of_another_host_is_not_looked_at(node: FaultyDriver) -> None:
    (report,) = gateway_report.reports(["gateway"], None, Path("/"))
    assert "run slicewise doctor on the gateway's host" in report.skipped
    assert report.findings == ()


def test_a_failure_of_an_adapter_keeps_its_code(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_has(monkeypatch, ALL)

    def broken(*_: object) -> None:
        raise OutsideError("SW-DRIVER", "The NVIDIA driver answered: no.", "Run it as root.")

    monkeypatch.setattr(site_report, "node_findings", broken)
    assert found(*OF_NODE)["SW-DRIVER"] == "The NVIDIA driver answered: no"


def test_a_node_without_a_driver_is_looked_at_all_the_same(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs no driver was hidden behind its absence."""
    slurm_has(monkeypatch, ALL, {**CONSTRAINED, "Prolog[0]": "/nowhere/prolog.sh"})

    def absent(*_: object) -> None:
        raise UnreachableError("SW-DRIVER-MISSING", "This node has no driver.")

    monkeypatch.setattr(site_report, "node_findings", absent)
    monkeypatch.setattr(site_report, "missing_programs", lambda _: ("openssl",))
    said = found(*OF_NODE)
    assert said.keys() == {"SW-DRIVER-MISSING", "SW-PROGRAM", "SW-FILE-MISSING"}
    assert said["SW-FILE-MISSING"] == "/nowhere/prolog.sh is not there: there is no /nowhere"
    slurm_has(monkeypatch, ALL, {**CONSTRAINED, "Prolog": "/nowhere/*.sh", "Epilog": "(null)"})
    assert found(*OF_NODE).keys() == {"SW-DRIVER-MISSING", "SW-PROGRAM"}


def test_a_file_that_may_not_be_read_is_a_warning(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_has(monkeypatch, ALL)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/etc/slurm/job_submit.lua")

    monkeypatch.setattr(site_report, "node_findings", denied)
    result = run(*OF_NODE)
    assert result.exit_code == ExitCode.WARNED
    assert "/etc/slurm/job_submit.lua: Permission denied" in result.stdout
