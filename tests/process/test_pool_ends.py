"""Tests which tests run beside which."""

import multiprocessing
import signal
from typing import Any


def test_a_pool_s_processes_end_when_they_are_told_to():
    """As those of a program that has no handlers: what runs tests has some."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply(_handlers)
    assert found == [signal.SIG_DFL] * 2


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
