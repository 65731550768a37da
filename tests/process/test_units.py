"""Checks the systemd units that operators install: what each process may do at most."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slicewise.cluster.language.codes import Code

ETC = Path(__file__).parents[2] / "etc"
UNITS = sorted(ETC.glob("slicewise-*.service"))
PROGRAM = "/opt/slicewise/bin/slicewise"
CAPABILITIES = {
    "slicewise-daemon.service": "",
    "slicewise-launcher.service": "",
    # NVIDIA's driver says to administrators only how busy instances are.
    "slicewise-meter.service": "CAP_SYS_ADMIN",
    # As root it writes slurm.conf, which may be another's.
    "slicewise-rebalance.service": "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER",
    "slicewise-web.service": "",
}
BOUNDS = {
    "NoNewPrivileges": "yes",
    "AmbientCapabilities": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectControlGroups": "yes",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallArchitectures": "native",
    "SystemCallFilter": "@system-service",
    "LimitCORE": "0",
}


def settings(unit: Path) -> dict[str, str]:
    lines = (line.strip() for line in unit.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if "=" in line and line[0] not in "#;[")
    return {name: value for name, _, value in pairs}


def test_each_service_has_a_bound_of_capabilities() -> None:
    found = {unit.name: settings(unit).get("CapabilityBoundingSet") for unit in UNITS}
    assert found == CAPABILITIES


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_each_service_sees_and_changes_no_more_than_it_needs(unit: Path) -> None:
    found = settings(unit)
    # A meter reads the boards' devices.
    devices = "no" if unit.name == "slicewise-meter.service" else "yes"
    assert {name: found.get(name) for name in BOUNDS} == {**BOUNDS, "PrivateDevices": devices}


def test_the_page_is_not_started_again_where_that_mends_nothing() -> None:
    found = settings(ETC / "slicewise-web.service")["RestartPreventExitStatus"]
    assert found.split() == [f"{code.exit_code:d}" for code in (Code.WEB_OFF, Code.USER)]


def test_the_pages_port_is_never_free() -> None:
    """Any user of the host could listen there while the page is down."""
    service, port = settings(ETC / "slicewise-web.service"), settings(ETC / "slicewise-web.socket")
    assert (service["Requires"], service["Also"]) == ("slicewise-web.socket",) * 2
    assert (service["StartLimitIntervalSec"], port["TriggerLimitIntervalSec"]) == ("0", "0")
    assert port["ListenStream"] == "127.0.0.1:8690"


EXPOSURE = {
    "slicewise-daemon.service": 20,
    "slicewise-launcher.service": 20,
    "slicewise-meter.service": 40,
    "slicewise-rebalance.service": 27,
    "slicewise-web.service": 20,
}
"""At most, in tenths, as ``systemd-analyze security`` has it: 100 is a service without bounds."""


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Where all units lie, beside Debian's for HAProxy; their program is one that is there."""
    shutil.copy("/lib/systemd/system/haproxy.service", tmp_path)
    drop_in = tmp_path / "haproxy.service.d" / "slicewise.conf"
    drop_in.parent.mkdir()
    shutil.copy(ETC / "haproxy-slicewise.conf", drop_in)
    for unit in (*UNITS, *ETC.glob("*.socket"), *ETC.glob("*.timer")):
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    return tmp_path


def analyzed(*words: str | Path, units: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words],
        env=os.environ | {"SYSTEMD_UNIT_PATH": f"{units}:"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_systemd_understands_every_line_of_the_units(units: Path) -> None:
    named = [one for one in units.iterdir() if one.is_file()]
    assert len(named) == len(UNITS) + 4
    done = analyzed("verify", *named, units=units)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_each_service_little_exposed(unit: Path, units: Path) -> None:
    bound = f"--threshold={EXPOSURE[unit.name]}"
    done = analyzed("security", "--offline=true", bound, units / unit.name, units=units)
    assert done.returncode == 0, done.stdout
