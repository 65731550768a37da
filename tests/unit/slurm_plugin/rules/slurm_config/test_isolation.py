"""Tests whether Slurm's settings keep jobs off each other's GPUs."""

from pathlib import Path

import pytest

from slicewise.cluster.language.slurm.parse import parse_config
from slicewise.slurm_plugin.rules.slurm_config.isolation import isolation_findings

RECORDED = Path(__file__).parents[4] / "assets" / "slurm"
CGROUPS = """
Cgroup Support Configuration:
AllowedRAMSpace         = 100.0%
CgroupPlugin            = autodetect
ConstrainCores          = yes
ConstrainDevices        = yes
ConstrainRAMSpace       = yes
"""
"""As slurmctld prints cgroup.conf behind its own keys."""
KEPT_APART = f"ProctrackType = proctrack/cgroup\nTaskPlugin = task/affinity,task/cgroup\n{CGROUPS}"


def codes(text: str) -> list[str]:
    found = isolation_findings(parse_config(text))
    assert all(one.text.endswith(f" [{one.code}]") for one in found)
    return [one.code for one in found]


def test_a_site_that_constrains_devices_is_all_right() -> None:
    assert codes(KEPT_APART) == []


@pytest.mark.parametrize(
    ("was", "now", "code"),
    [
        ("task/affinity,task/cgroup", "task/affinity", "SW-DEVICES-OPEN"),
        ("task/affinity,task/cgroup", "(null)", "SW-DEVICES-OPEN"),
        ("ConstrainDevices        = yes", "ConstrainDevices        = no", "SW-DEVICES-OPEN"),
        # cgroup.conf says nothing of it, or there is none.
        ("ConstrainDevices        = yes", "", "SW-DEVICES-OPEN"),
        (CGROUPS, "", "SW-DEVICES-OPEN"),
        ("proctrack/cgroup", "proctrack/linuxproc", "SW-PROCESSES-LOOSE"),
        ("proctrack/cgroup", "proctrack/pgid", "SW-PROCESSES-LOOSE"),
    ],
)
def test_what_leaves_devices_open_is_said(was: str, now: str, code: str) -> None:
    assert codes(KEPT_APART.replace(was, now)) == [code]


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5", "26.05.5"])
def test_a_cluster_without_cgroups_says_so(version: str) -> None:
    """As each version shows it of a sandbox."""
    text = (RECORDED / version / "scontrol-show-config.txt").read_text()
    assert codes(text) == ["SW-DEVICES-OPEN", "SW-PROCESSES-LOOSE"]
