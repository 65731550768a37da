"""Tests reading a job's request from squeue."""

import pytest

from cluster.slurm.interface import JobRequest
from cluster.slurm.requests import parse_requests
from cluster.slurm.unread import ignored

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
