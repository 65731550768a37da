import os
import signal
import threading

import pytest

from slicewise.sandbox.lifecycle import _uninterrupted


def test_an_interrupt_passes_by_while_things_are_taken_down_also_beside_another_thread():
    ended = threading.Event()
    beside = threading.Thread(target=ended.wait)
    beside.start()
    try:
        with _uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        ended.set()
        beside.join()


def test_afterwards_interrupts_count_again():
    with _uninterrupted():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
