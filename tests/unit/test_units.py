"""Checks the systemd units that operators install: what each process may do at most."""

from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "etc").glob("slicewise-*.service"))
CAPABILITIES = {
    "slicewise-daemon.service": "",
    "slicewise-launcher.service": "",
    # As root it writes slurm.conf, which may be another's.
    "slicewise-rebalance.service": "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER",
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
    assert {name: found.get(name) for name in BOUNDS} == BOUNDS
