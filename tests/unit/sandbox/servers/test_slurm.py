from pathlib import Path

import pytest

from slicewise.sandbox.host.host import Host, hosts_text
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.state import Program, State
from slicewise.sandbox.host.users import User, one_user, several_users
from slicewise.sandbox.servers.slurm import account_commands, cgroup_conf, slurmctld_command

LAYOUT = Layout(Path("/s"), 9)
PROGRAM = Program(Path("/usr/bin/python3"), Path("/v"), Path("/p"))


def host(users: dict[str, User]) -> Host:
    return Host(State(LAYOUT, users, PROGRAM, device_nodes=False))


@pytest.fixture
def rich() -> Host:
    return host(dict(several_users(9, User("slurm", 64030, 64030))))


@pytest.fixture
def poor() -> Host:
    return host(dict(one_user(User("me", 1000, 1000))))


def test_every_tenant_user_is_added_to_its_account(rich: Host):
    assert account_commands(rich).splitlines() == [
        "add cluster sandbox",
        "add account vision,nlp,guest",
        "add user alice account=vision",
        "add user bob account=nlp",
        "add user carol account=guest",
        "add qos slicewise_gate",
        "quit",
    ]


def test_one_user_is_in_every_account(poor: Host):
    assert account_commands(poor).count("add user me account=") == 3


def test_one_user_has_each_tenant_s_account_in_the_environment(rich: Host, poor: Host):
    assert poor.environment("bob")["SBATCH_ACCOUNT"] == "nlp"
    assert "SBATCH_ACCOUNT" not in poor.environment("slurm")
    assert "SBATCH_ACCOUNT" not in rich.environment("bob")


def test_only_operators_know_the_ledger(rich: Host):
    roles = rich.state.users
    knowing = {role for role in roles if "SLICEWISE_DATABASE_URL" in rich.environment(role)}
    assert knowing == {"root", "slurm"}


def test_the_caller_s_environment_stays_outside(rich: Host, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("TERM", "vt100")
    environment = rich.environment("alice")
    assert "SECRET" not in environment
    assert environment["TERM"] == "vt100"


def test_hosts_has_the_head_and_every_node():
    assert hosts_text(LAYOUT).splitlines() == [
        "127.0.0.1 localhost",
        "127.0.0.1 head",
        *(f"127.77.9.{11 + i} gpu0{1 + i}" for i in range(4)),
    ]


@pytest.mark.parametrize(
    ("version", "plugin"), [((22, 5, 8), "cgroup/v1"), ((24, 11, 5), "disabled")]
)
def test_slurmd_leaves_the_machine_s_cgroups_alone(version: tuple[int, ...], plugin: str):
    assert cgroup_conf(version) == f"CgroupPlugin={plugin}\n"


def test_slurmctld_goes_on_without_state_that_it_was_killed_before_writing(tmp_path: Path):
    written = ("assoc_usage", "fed_mgr_state", "job_state", "node_state", "resv_state")
    for name in written:
        (tmp_path / name).touch()
    assert slurmctld_command(tmp_path) == ("slurmctld", "-D", "-i")
    (tmp_path / "trigger_state").touch()
    assert slurmctld_command(tmp_path) == ("slurmctld", "-D")
