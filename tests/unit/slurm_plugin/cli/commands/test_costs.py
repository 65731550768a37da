"""Tests what ``slicewise mig costs`` says of GPUs that jobs share."""

import json
from pathlib import Path

import pytest

from slicewise.cluster.settings.read import CONFIG_VARIABLE
from slicewise.slurm_plugin.cli.commands.costs import print_costs


def test_parts_of_shared_gpus_stand_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "slicewise.toml"
    place.write_text(
        '[cluster]\nname = "c"\npartitions = ["gpu"]\n[gpus."L40S"]\nwhole = ["l40s"]\n'
        "[shared]\nshard_millislices = 875\n"
    )
    monkeypatch.setenv(CONFIG_VARIABLE, str(place))
    print_costs(as_json=True)
    whole, shard = json.loads(capsys.readouterr().out)
    assert (whole["profile"], whole["cost_millislices"]) == ("l40s", 7000)
    assert (shard["model"], shard["profile"], shard["cost_millislices"]) == ("any", "shard", 875)
    assert (shard["memory_share"], shard["memory_mib"]) == ("shared", None)
