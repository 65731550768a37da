from sandbox.host.process import Process
from sandbox.restart import ended
from sandbox.servers.slurm import responds


def program(name: str) -> Process:
    return Process(name, "slurm", 1, 1, 0.0)


def test_what_has_ended_is_started_in_the_order_of_need():
    names = ("launcher", "slurmctld", "slurmd-gpu02", "munged", "postgres", "napper")
    processes = {name: program(name) for name in names}
    found = ended(processes, lambda process: process.name == "postgres")
    assert found == ("munged", "slurmctld", "slurmd-gpu02", "launcher")


def test_a_server_that_was_never_started_has_not_ended():
    assert ended({"munged": program("munged")}, lambda _: False) == ("munged",)


def test_a_node_responds_also_while_jobs_run_there():
    assert [responds(state) for state in ("idle", "mixed", "drained", "allocated")] == [True] * 4
    assert not any(responds(state) for state in ("", "idle*", "mixed*", "down", "unknown*"))
