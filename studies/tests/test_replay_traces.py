"""Tests the formats of traces that the replay reads, each in a file of a few lines."""

import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest

from studies.autoscale import traces
from studies.autoscale.servegen import Window, clients, requests
from studies.autoscale.traces import TraceError, given
from studies.autoscale.workload import Workload, fitting_concurrency


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With load times of 20 and 30 s, which every replay needs."""
    loads = tmp_path / "alibaba_gentd26_basemodel_update_latency_anon.csv.xz"
    loads.write_bytes(lzma.compress(b"timestamp_anon,value,container_ip\n1,20000.0,a\n2,30000,b\n"))
    return tmp_path


def read(folder: Path, name: str, text: str, seed: int = 1) -> Workload:
    path = folder / name
    path.write_bytes(lzma.compress(text.encode()) if name.endswith(".xz") else text.encode())
    return given(path, folder, seed)


def test_azure_tokens_become_seconds_of_service(folder: Path):
    found = read(
        folder,
        "azure.csv.xz",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,5000,0\n"
        "2023-11-16 18:15:48.1805900,0,100\n",
    )
    assert found.arrivals_s.tolist() == [0.0, 1.5]
    assert found.service_s.tolist() == [1.0, 3.0]
    assert found.duration_s == 2
    assert set(found.starts.load_s.tolist()) == {20.0, 30.0}


def test_mooncake_is_spread_over_the_ticks_of_its_clock(folder: Path):
    line = '{{"timestamp": {}, "input_length": 10000, "output_length": 100, "hash_ids": []}}\n'
    found = read(folder, "trace.jsonl", "".join(line.format(t) for t in (0, 0, 0, 3000, 6000)))
    assert np.diff(found.arrivals_s).min() > 0
    assert found.arrivals_s[-1] <= 9.0
    assert set(found.service_s.tolist()) == {5.0}


def test_gentd26_is_folded_into_a_day(folder: Path):
    found = read(
        folder,
        "lora.csv.xz",
        "gmt_create,exec_time_seconds,checkpoint_model_version_id\n"
        "2024-11-15 00:00:00,30,M0000\n"
        "2024-11-15 00:00:01,40,M0001\n"
        "2024-11-17 12:00:00,50,M0000\n"
        "2024-11-17 12:00:00,,M0001\n",
    )
    assert found.service_s.tolist() == [30.0, 40.0, 50.0]
    assert found.duration_s == pytest.approx(12 * 3600, abs=2)


def test_a_column_of_seconds_is_enough(folder: Path):
    found = read(folder, "plain.csv", "arrival_s\n" + "".join(f"{1000 + i}\n" for i in range(600)))
    assert found.name == "plain"
    assert found.arrivals_s[:3].tolist() == [0.0, 1.0, 2.0]
    # One request a second would need 5 places at 5 s: they last longer, up to 26 places.
    assert found.service_s.mean() == pytest.approx(26.0, rel=0.25)
    assert found.concurrency == 1


def test_the_seed_decides(folder: Path):
    text = "".join(f"{i}\n" for i in range(100))
    first, same, other = (read(folder, "a.csv", text, seed) for seed in (1, 1, 2))
    assert first.service_s.tolist() == same.service_s.tolist()
    assert first.starts.queue_s.tolist() == same.starts.queue_s.tolist()
    assert first.service_s.tolist() != other.service_s.tolist()


def test_servegen_clients_become_renewal_processes(folder: Path):
    path = folder / "servegen.tar.xz"
    rows = {"a": "0,1.5,1,Gamma,1,0.67\n600,0,0,,0,0\n", "b": "0,0.5,2,Weibull,0.6,1\n"}
    with tarfile.open(path, "w:xz") as archive:
        for name, text in rows.items():
            (folder / f"{name}.csv").write_text(text)
            archive.add(folder / f"{name}.csv", f"language/{name}.csv")
    found = clients(path, 0, 1200)
    assert found == [
        [Window(0.0, 1.5, is_weibull=False, shape=1.0)],
        [Window(0.0, 0.5, is_weibull=True, shape=0.6)],
    ]
    arrivals, service = requests(found, 1200, 1.0, np.random.default_rng(1))
    # The busiest window is scaled to 104 places, at 1 s each.
    assert arrivals.size == pytest.approx(104 * 600, rel=0.1)
    assert arrivals[-1] < 600
    assert service.mean() == pytest.approx(1.0, rel=0.05)


def test_gaps_keep_their_coefficient_of_variation():
    window = [[Window(0.0, 1.0, is_weibull=False, shape=0.25)]]
    arrivals, _ = requests(window, 600, 0.5, np.random.default_rng(1))
    gaps = np.diff(arrivals)
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("per_s", "concurrency"), [(0.1, 1), (26.0, 2), (104.0, 8)])
def test_the_busiest_minute_needs_26_full_replicas_at_least(per_s: float, concurrency: int):
    arrivals = np.arange(0, 60, 1 / per_s)
    assert fitting_concurrency(arrivals, np.full(arrivals.size, 2.0)) == concurrency


def test_a_trace_that_is_not_there_says_what_to_do(tmp_path: Path):
    with pytest.raises(TraceError, match="--traces DIR or SLICEWISE_TRACES"):
        traces.stored("azure", tmp_path, 1)


@pytest.mark.parametrize("text", ["", "5\n", "a,b\nc,d\n"])
def test_a_file_without_arrivals_is_refused(folder: Path, text: str):
    with pytest.raises(TraceError, match="first column"):
        read(folder, "empty.csv", text)
