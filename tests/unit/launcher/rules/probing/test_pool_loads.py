"""Tests what a launcher and a pool's replica say to each other of a load."""

from slicewise.launcher.rules.probing.pool_loads import MOST_BYTES, WEIGHTS, is_from_node, load_line
from slicewise.launcher.scripts import door


def test_a_replica_hears_what_is_loaded_beside_what():
    assert load_line("m", ["b", "a.1"]) == b"m a.1 b\n"


def test_no_name_of_a_tenants_model_makes_another_line():
    assert load_line("m", ["a b", "a\nb", "\u00e4", "\x1f", "c"]) == b"m c\n"


def test_only_a_hit_was_read_on_the_node():
    assert is_from_node(b"hit\n")
    assert not any(map(is_from_node, (b"", b"source\n", b"hit", b"hit 1\n")))


def test_door_and_launcher_mean_the_same_protocol_and_its_words_fit():
    assert door.WEIGHTS == WEIGHTS
    assert len(b"source\n") <= MOST_BYTES
