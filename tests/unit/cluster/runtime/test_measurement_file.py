"""Tests the file of measurements: joined, updated in one step, ParvaGPU's format read."""

import json
from pathlib import Path

import pytest
from builders.measurements import a_measurement

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.measurements import Measurement, merged
from slicewise.cluster.runtime.measurement_file import read_measurements, update_measurements


def row(batch: int = 1, throughput_mrps: int = 5_000, **change: object) -> Measurement:
    return a_measurement(batch=batch, throughput_mrps=throughput_mrps, **change)


def test_what_is_measured_again_is_replaced_and_the_rest_stays() -> None:
    old = (row(2), row(1), row(1, type="2g.20gb"))
    assert merged(old, [row(2, 9)]) == (row(1), row(2, 9), row(1, type="2g.20gb"))


def test_a_file_is_begun_and_updated(tmp_path: Path) -> None:
    file = tmp_path / "bert.json"
    assert update_measurements(file, [row(2)]) == (row(2),)
    assert update_measurements(file, [row(1)]) == read_measurements(file) == (row(1), row(2))
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_still_leads_to_the_file(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real.json")
    update_measurements(link, [row()])
    assert link.is_symlink()
    assert read_measurements(tmp_path / "real.json") == (row(),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "measurements": []}',
        '{"version": 1, "measurements": [{"model": "m"}]}',
        json.dumps({"version": 1, "measurements": [row().model_dump() | {"batch": "1"}]}),
        json.dumps({"version": 1, "measurements": [row().model_dump() | {"latency_us": -1}]}),
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "notes.json"
    file.write_text(text)
    with pytest.raises(InvalidInputError, match=r"notes\.json.*SW-INPUT-FILE"):
        update_measurements(file, [row()])
    assert file.read_text() == text


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="SW-INPUT-FILE"):
        update_measurements(tmp_path / "none" / "bert.json", [row()])


HEAD = "Mig instance,Batch size,Workload Number,Throughput,Latency\n"


def test_parvagpu_s_table(tmp_path: Path) -> None:
    file = tmp_path / "bert.csv"
    file.write_text(f"{HEAD}3,8,2,74.4089,0.0131\n7,8,5,0,0\n")
    measured, impossible = read_measurements(file)
    assert measured == row(8, 74_408, type="3g.40gb", processes=2, latency_us=13_100, samples=0)
    assert (impossible.type, impossible.throughput_mrps, impossible.reason) == (
        "7g.80gb",
        0,
        "not measured",
    )


@pytest.mark.parametrize("line", ["5,1,1,1,1", "1,1,1,1", "1,1,1,x,1", "1,0,1,1,1", "1,1,1,-1,1"])
def test_a_line_that_is_no_measurement_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "bert.csv"
    file.write_text(f"{HEAD}1,1,1,1,1\n{line}\n")
    with pytest.raises(InvalidInputError, match=r"bert\.csv: line 3.*SW-INPUT-FILE"):
        read_measurements(file)
