from pathlib import Path

from slicewise.sandbox.host.directory import (
    chosen_slot,
    held_slot,
)


def test_two_sandboxes_that_start_at_once_take_different_slots(tmp_path: Path):
    with chosen_slot(tmp_path) as first, chosen_slot(tmp_path) as second:
        assert first != second
        with held_slot(first) as is_held:
            assert not is_held
    with chosen_slot(tmp_path) as again:
        assert again == first
