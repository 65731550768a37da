"""Tests reading archives: what a site has, and archives that somebody made to do harm."""

import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.snapshot_world import NOW_S, snapshot

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.slurm.job_history import HISTORY_FIELDS
from slicewise.simulation.rules.cluster import Scheduling, SimulatedNode
from slicewise.simulation.rules.snapshot.site import described, scheduling_of
from slicewise.simulation.snapshot import archive_reader
from slicewise.simulation.snapshot.archive_reader import is_archive, read_snapshot
from slicewise.slurm_plugin.rules.snapshot.archive import write_archive
from slicewise.slurm_plugin.rules.snapshot.contents import HISTORY, STATE, to_json


def written(folder: Path, history: list[str] | None = None) -> Path:
    path = folder / "site.zip"
    with path.open("wb") as file:
        write_archive(file, snapshot(), history)
    return path


def made(folder: Path, members: Mapping[str, bytes], pack: int = zipfile.ZIP_DEFLATED) -> Path:
    path = folder / "site.zip"
    with zipfile.ZipFile(path, "w", pack) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def changed(folder: Path, change: Callable[[Any], object]) -> Path:
    values = json.loads(to_json(snapshot()))
    change(values)
    return made(folder, {STATE: json.dumps(values).encode()})


def refused(path: Path) -> str:
    with pytest.raises(InvalidInputError) as caught:
        read_snapshot(path)
    assert caught.value.refusal.code == "SW-INPUT-FILE"
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    return caught.value.refusal.message


def test_what_was_written_is_read(tmp_path: Path):
    path = written(tmp_path)
    assert is_archive(path)
    taken = read_snapshot(path)
    assert (taken.snapshot, taken.history) == (snapshot(), None)


def test_the_history_in_it_is_read(tmp_path: Path):
    row = "7|7|u|a|q|gpu|100|100|150|200|COMPLETED|10|50||1|cpu=1,gres/gpu:a100=1|node=1"
    taken = read_snapshot(written(tmp_path, ["|".join(HISTORY_FIELDS), row, "nonsense"]))
    assert taken.history is not None
    assert [(job.job_id, job.gpus) for job in taken.history.jobs] == [(7, {"a100": 1})]
    assert taken.history.first_unread.endswith("jobs.txt, line 3: 1 columns in place of 17")


def test_the_history_is_whole_from_when_it_was_asked_for(tmp_path: Path):
    row = "7|7|u|a|q|gpu|100|100|150|200|COMPLETED|10|50||1|cpu=1,gres/gpu:a100=1|node=1"
    taken = read_snapshot(written(tmp_path, ["|".join(HISTORY_FIELDS), row]))
    assert taken.history is not None
    assert taken.history.whole_from_s == NOW_S - 86_400


def test_the_site_is_the_snapshots():
    site = described(snapshot())
    assert site.taken_s == NOW_S
    gpus = {"1g.10gb": 7, "a100": 1, "": 2}
    assert site.cluster.nodes == (
        SimulatedNode("gpu01", frozenset({"gpu", "all"}), gpus, 64, 512_000, 5),
    )
    assert site.cluster.accounts == {"vision": "root", "nlp": "vision"}
    assert site.cluster.shares == {"vision": 3}
    assert (site.cluster.max_time_s, site.cluster.default_time_s) == ({"gpu": 86_400}, {})
    partitions = (replace(snapshot().partitions[0], default_time_s=60),)
    of = described(replace(snapshot(), partitions=partitions))
    assert of.cluster.default_time_s == {"gpu": 60}
    assert site.cluster.scheduling.backfill_s == 5
    assert site.cluster.scheduling.weights.age == 1000
    assert site.ledger.policy["nlp"].quota.weight == 2
    assert site.settings.costs["a100"] == 10_500


@pytest.mark.parametrize(
    ("said", "enforces"), [("NO", False), ("ANY", True), ("ALL", True), ("", False)]
)
def test_what_slurm_refuses_by_a_partition_s_limits_is_known(said: str, enforces: bool):
    config = {"EnforcePartLimits": said} if said else {}
    assert described(replace(snapshot(), config=config)).enforces_limits == enforces


@pytest.mark.parametrize(
    ("config", "by_qos"),
    [
        ({"PreemptType": "preempt/qos"}, True),
        ({"PreemptType": "preempt/none"}, False),
        ({"PreemptType": "preempt/partition_prio"}, False),
        ({}, False),
    ],
)
def test_preemption_by_slurm_conf(config: Mapping[str, str], by_qos: bool):
    assert described(replace(snapshot(), config=config)).preempts_by_qos is by_qos


def test_what_a_preemption_does_by_slurm_conf():
    config = {"PreemptMode": "CANCEL"}
    assert described(replace(snapshot(), config=config)).preempt_mode == "cancel"
    assert described(replace(snapshot(), config={})).preempt_mode == "off"


def test_scheduling_by_slurm_conf():
    found = scheduling_of(
        {
            "SchedulerType": "sched/builtin",
            "SchedulerParameters": "sched_min_interval=2000000,batch_sched_delay=1,"
            "bf_max_job_test=1000,bf_window=60,default_queue_depth=7,bf_interval=x,defer,"
            "bf_resolution=300,sched_interval=20,bf_min_age_reserve=900,bf_min_prio_reserve=69121",
            "AuthInfo": "cred_expire=10",
            "PriorityType": "priority/basic",
            "PriorityWeightAge": "1000",
        }
    )
    assert (found.interval_s, found.backfill_jobs, found.backfill_window_s) == (2.0, 1000, 3600.0)
    assert found.batch_delay_s == 1.0
    assert (found.backfill_resolution_s, found.full_run_s, found.requeue_wait_s) == (300, 20, 10)
    assert (found.reserve_age_s, found.reserve_priority) == (900, 69_121)
    bare = scheduling_of({})
    assert (bare.interval_s, bare.batch_delay_s) == (pytest.approx(2e-6), 3.0)
    assert (found.depth, found.backfills, found.backfill_s, found.weights.age) == (7, False, 30, 0)
    assert not found.preempts_youngest_first
    assert [scheduling_of({"KillWait": one}).kill_wait_s for one in ("8 sec", "?")] == [8, 30]
    assert scheduling_of({"SchedulerParameters": "preempt_youngest_first"}).preempts_youngest_first
    weights = scheduling_of({"PriorityMaxAge": "1-00:00:00", "PriorityDecayHalfLife": "00:00:00"})
    assert (weights.weights.max_age_s, weights.weights.half_life_s) == (86_400, 0)


def test_parameters_that_slurm_does_not_take_leave_its_defaults():
    bare = scheduling_of({})
    assert bare == Scheduling(interval_s=bare.interval_s, batch_delay_s=bare.batch_delay_s)
    bad = "bf_interval=0,bf_window=0,bf_max_job_test=0,bf_resolution=0,sched_interval=0"
    assert scheduling_of({"SchedulerParameters": bad, "AuthInfo": "cred_expire=4"}) == bare


def test_a_backfill_interval_below_zero_turns_backfill_off():
    assert not scheduling_of({"SchedulerParameters": "bf_interval=-1"}).backfills


def test_a_later_format_is_refused(tmp_path: Path):
    assert "its format is 2" in refused(changed(tmp_path, lambda v: v.update(format=2)))
    assert "its format is" in refused(changed(tmp_path, lambda v: v.update(format="\x1b[2J")))
    assert "its format is None" in refused(made(tmp_path, {STATE: b"[]"}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v["nodes"][0].update(name="gpu\x1b[2J"), "text that no site has"),
        (lambda v: v["ledger"]["tenants"].update({"a\nb": {}}), "text that no site has"),
        (lambda v: v["nodes"][0].update(name="x" * 20_000), "text that no site has"),
        (lambda v: v["nodes"][0].update(weight="much"), "nodes.0.weight"),
        (lambda v: v["settings"].update(gpus={}), "cluster|gpus|settings"),
        (lambda v: v["settings"]["gpus"].update(X={"types": ["9g.1gb"]}), "settings"),
        (lambda v: v["settings"].update(nonsense=1), "nonsense"),
        (lambda v: v.update(jobs={}), "jobs"),
        (lambda v: v["nodes"][0].update(cpus=1 << 65), "a number that no site has"),
        (lambda v: v["partitions"][0]["billing_weights"].update(cpu=float("nan")), "a number that"),
        (lambda v: v["ledger"]["when"].update(at_s=float("-inf")), "a number that no site has"),
        (lambda v: v["ledger"]["tenants"]["vision"].update(parent="nlp"), "stands above itself"),
        (lambda v: v["associations"][1].update(parent="nlp"), "stands above itself"),
        (
            lambda v: v["settings"]["gpus"]["A100-80GB"].update(weight="1e999999999"),
            'write a number such as "1.5"',
        ),
    ],
)
def test_values_that_no_site_has_are_refused(
    tmp_path: Path, change: Callable[[Any], object], said: str
):
    message = refused(changed(tmp_path, change))
    assert any(one in message for one in said.split("|"))


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"format": 1, "a": ' + b"[" * 100_000, b"\xff\xfe", b'"\\ud800"']
)
def test_what_is_no_json_is_refused(tmp_path: Path, text: bytes):
    refused(made(tmp_path, {STATE: text}))


def test_a_member_that_unpacks_to_too_much_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(archive_reader, "MOST_STATE_BYTES", 1 << 20)
    path = made(tmp_path, {STATE: b" " * (1 << 24)})
    assert path.stat().st_size < 1 << 16
    assert "more than 1048576 bytes" in refused(path)
    # Its header says that it is small.
    packed = path.read_bytes().replace(struct.pack("<I", 1 << 24), struct.pack("<I", 100))
    path.write_bytes(packed)
    refused(path)


def test_an_archive_of_many_members_is_not_listed(tmp_path: Path):
    path = made(tmp_path, {STATE: b"{}", **{f"{n}": b"" for n in range(20)}})
    assert "too many members" in refused(path)


def test_members_with_names_of_other_places_are_left_alone(tmp_path: Path):
    path = made(
        tmp_path,
        {STATE: to_json(snapshot()).encode(), "../../etc/passwd": b"x", "/root/a": b"y"},
    )
    assert read_snapshot(path).snapshot == snapshot()
    assert [one.name for one in tmp_path.iterdir()] == ["site.zip"]


def test_an_archive_without_the_state_or_with_two_is_refused(tmp_path: Path):
    assert "no snapshot.json" in refused(made(tmp_path, {HISTORY: b"x"}))
    path = made(tmp_path, {STATE: b"{}"})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(STATE, b"{}")
    assert "no snapshot.json" in refused(path)


@pytest.mark.parametrize("cut", [1, 30, 100, 1000])
def test_a_damaged_archive_is_refused(tmp_path: Path, cut: int):
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    refused(path)
    path.write_bytes(whole[:60] + bytes(60) + whole[120:])
    refused(path)


def test_a_locked_member_and_an_unknown_packing_are_refused(tmp_path: Path):
    whole = written(tmp_path).read_bytes()
    for offset, value in ((6, b"\x01\x00"), (8, b"\x63\x00")):
        directory = whole.rindex(b"PK\x01\x02")
        path = tmp_path / "site.zip"
        path.write_bytes(whole[: directory + 2 + offset] + value + whole[directory + 4 + offset :])
        refused(path)


@pytest.mark.parametrize("pack", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("name", [STATE, HISTORY])
def test_other_packings_are_refused(tmp_path: Path, pack: int, name: str):
    path = made(tmp_path, {STATE: to_json(snapshot()).encode()})
    if name == STATE:
        path = made(tmp_path, {STATE: to_json(snapshot()).encode()}, pack)
    else:
        with zipfile.ZipFile(path, "a", pack) as archive:
            archive.writestr(HISTORY, b"x")
    assert f"{name} is packed as" in refused(path)


def test_a_members_name_that_is_no_text_is_refused(tmp_path: Path):
    path = made(tmp_path, {STATE: b"{}", "\N{SNOWMAN}": b""})
    path.write_bytes(path.read_bytes().replace("\N{SNOWMAN}".encode(), b"\xff\xff\xff"))
    refused(path)


def test_a_record_of_zip64_that_says_otherwise_is_refused(tmp_path: Path):
    path = written(tmp_path)
    whole = path.read_bytes()
    locator = b"PK\x06\x07" + bytes(16)
    path.write_bytes(whole[:-22] + locator + whole[-22:])
    assert "no archive" in refused(path)


def test_a_file_that_is_none_is_refused(tmp_path: Path):
    refused(tmp_path / "none.zip")
    path = tmp_path / "text"
    path.write_bytes(b"hello")
    assert not is_archive(path)
    refused(path)


def test_a_recorded_archive_of_format_1_is_still_read():
    """If a key gets another name or meaning, that is another format. Keys can come in addition."""
    path = Path(__file__).parents[3] / "assets" / "snapshot" / "format-1.zip"
    recorded, now = read_snapshot(path).snapshot, snapshot()
    assert replace(recorded, settings={}) == replace(now, settings={})
    for section, values in recorded.settings.items():
        assert values.items() <= now.settings[section].items()


def test_an_empty_history_says_so(tmp_path: Path):
    buffer = io.BytesIO()
    write_archive(buffer, snapshot(), ["|".join(HISTORY_FIELDS)])
    path = tmp_path / "site.zip"
    path.write_bytes(buffer.getvalue())
    taken = read_snapshot(path)
    assert taken.history is not None
    assert taken.history.jobs == ()
