"""Tests reading a job's request from squeue."""

import pytest

from slicewise.cluster.language.slurm.interface import JobRequest
from slicewise.cluster.language.slurm.requests import parse_excluded, parse_requests
from slicewise.cluster.language.slurm.unread import ignored

ROW = {
    "JobId": "7",
    "tres-per-node": "N/A",
    "tres-per-job": "N/A",
    "tres-per-socket": "N/A",
    "tres-per-task": "N/A",
    "NumNodes": "1",
    "NumTasks": "1",
    "OverSubscribe": "OK",
    "Requeue": "1",
}
PLAIN = {"min_nodes": 1, "tasks": 1}


@pytest.mark.parametrize(
    ("row", "request_"),
    [
        ({}, JobRequest(**PLAIN)),
        ({"tres-per-node": "gres:gpu:2"}, JobRequest(**PLAIN, gres="gres:gpu:2")),
        # What is left when it was cleared.
        ({"tres-per-node": "gres:", "tres-per-job": ""}, JobRequest(**PLAIN)),
        ({"tres-per-task": "gres/gpu=1"}, JobRequest(**PLAIN, tres_per_task="gres/gpu=1")),
        ({"NumNodes": "2-4", "NumTasks": "8"}, JobRequest(min_nodes=2, tasks=8)),
        ({"NumNodes": "", "NumTasks": "N/A"}, JobRequest()),
        ({"OverSubscribe": "NO"}, JobRequest(**PLAIN, exclusive=True)),
        ({"Requeue": "0"}, JobRequest(**PLAIN, requeue=False)),
    ],
)
def test_each(row: dict[str, str], request_: JobRequest) -> None:
    assert parse_requests([ROW | row], ignored) == {7: request_}


def test_excluded_nodes_of_each_record() -> None:
    """squeue prints a row for each task, also of those that share a record."""
    text = "7 \n7 \n8 gpu[01-02],login\n9 (null)\n10 gpu[\n"
    assert parse_excluded(text, ignored) == {
        7: frozenset(),
        8: {"gpu01", "gpu02", "login"},
        9: frozenset(),
    }
