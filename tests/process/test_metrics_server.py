"""Tests the port of metrics, to which every user of the host may connect."""

import socket
import threading
import urllib.request
from contextlib import ExitStack

from free_ports import free_port
from prometheus_client import CollectorRegistry, Counter, Gauge
from waiting import PATIENCE_S

from slicewise.cluster.runtime.prometheus import served

SILENT = 300


def read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as reply:
        return str(reply.read(), "utf-8")


def test_silent_connections_take_no_thread_each() -> None:
    """A thread and a file descriptor of the daemon for each: 1024 of these blinded it."""
    registry, port = CollectorRegistry(), free_port()
    Gauge("depth", "d", registry=registry).set(7)
    with served(registry, f"127.0.0.1:{port}", "metrics"), ExitStack() as stack:
        before = threading.active_count()
        for number in range(SILENT):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            if number % 50 == 0:
                assert "depth 7.0" in read(port)
        assert "depth 7.0" in read(port)
        # Those that were cut off may need a moment to end.
        assert threading.active_count() - before < SILENT / 4


def test_no_series_says_when_a_counter_began() -> None:
    registry, port = CollectorRegistry(), free_port()
    Counter("turns", "t", registry=registry).inc()
    with served(registry, f"127.0.0.1:{port}", "metrics"):
        shown = read(port)
    assert "turns_total 1.0" in shown
    assert "_created" not in shown


def test_metrics_are_read_by_ipv6_too() -> None:
    registry, port = CollectorRegistry(), free_port()
    Gauge("depth", "d", registry=registry).set(7)
    with (
        served(registry, f"[::1]:{port}", "metrics"),
        urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=PATIENCE_S) as reply,
    ):
        assert b"depth 7.0" in reply.read()
