"""Tests a node's lines in slurm.conf and gres.conf, and the order of its devices."""

from collections.abc import Sequence

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.slurm_plugin.rules.slurm_config.gres import Device, gres_conf, node_gres
from slicewise.slurm_plugin.rules.slurm_config.node_lines import (
    as_kept,
    node_positions,
    padded,
    positions,
    with_node_gres,
    with_node_lines,
)


def one_g(number: int) -> Device:
    return Device("1g.10gb", ("/dev/nvidia0", f"/dev/nvidia-caps/nvidia-cap{number}"))


ONES = tuple(one_g(number) for number in range(7))
THREE = Device("3g.40gb", ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap90"))
TWO = Device("2g.20gb", ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap91"))


def kinds(found: Sequence[Device | None]) -> list[str]:
    return ["-" if one is None else one.gres_type[:2] for one in found]


def test_on_an_empty_node_the_types_have_pads_between_them() -> None:
    found = positions([None] * 7, (ONES[0], THREE, ONES[1]), ())
    assert kinds(found) == ["-", "1g", "1g", "-", "3g", "-", "-"]
    assert found[1:3] == ONES[:2]
    assert positions([None] * 7, ONES, ()) == ONES
    assert kinds(positions([None] * 7, (), ())) == ["-"] * 7


def test_or_pads_are_behind_the_types_while_jobs_may_ask_for_any_gpu() -> None:
    found = positions([None] * 7, (ONES[0], THREE, ONES[1]), (), pads_between=False)
    assert kinds(found) == ["1g", "1g", "3g", "-", "-", "-", "-"]


def test_a_type_moves_as_far_as_its_held_devices_allow() -> None:
    there = (*ONES[:4], THREE, TWO, *[None] * 8)
    as_it_was = positions(there, (*ONES[:4], THREE, TWO), {0, 3, 4, 5})
    assert as_it_was == there
    some = positions(there, (*ONES[:4], THREE, TWO), {0, 4})
    assert kinds(some) == ["1g"] * 4 + ["3g"] + ["-"] * 4 + ["2g"] + ["-"] * 4
    assert (some[0], some[4]) == (ONES[0], THREE)
    last = positions([*[None] * 5, *ONES[:2]], ONES[:2], {6})
    assert last == (*[None] * 5, *ONES[:2])


def test_with_pads_between_a_type_becomes_more_beside_jobs_of_all_types() -> None:
    more = Device("3g.40gb", ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap92"))
    apart = positions([None] * 7, (*ONES[:2], THREE, TWO), ())
    held = [index for index, one in enumerate(apart) if one is not None]
    assert set(positions(apart, (*ONES[:2], THREE, TWO, more), held)) > {THREE, more}
    close = (*ONES[:2], THREE, TWO, *[None] * 3)
    with pytest.raises(InvalidInputError, match="SW-REPARTITION-HELD"):
        positions(close, (*ONES[:2], THREE, TWO, more), {0, 1, 2, 3})


def test_what_a_job_holds_keeps_its_index() -> None:
    found = positions(ONES, (*ONES[4:], THREE), {5})
    assert found[5] == ONES[5]
    assert kinds(found) == ["-", "3g", "-", "1g", "1g", "1g", "-"]


def test_a_type_is_one_run_of_indices_so_some_cuts_must_wait() -> None:
    both = positions(ONES, (*ONES[:2], TWO, *ONES[4:]), {0, 1, 4})
    assert (both[0], both[1], both[4]) == (ONES[0], ONES[1], ONES[4])
    with pytest.raises(InvalidInputError, match=r"0: 1g.10gb, 6: 1g.10gb.*\[SW-REPARTITION-HELD\]"):
        positions(ONES, (ONES[0], THREE, ONES[6]), {0, 6})


def test_a_node_that_makes_up_types_without_end_is_refused_soon() -> None:
    """With 16 it took a second, and six times as long with every two more."""
    made_up = [Device(f"{nth}g", (f"/dev/{nth}",)) for nth in range(54)]
    with pytest.raises(InvalidInputError, match="SW-REPARTITION-HELD"):
        positions((ONES[0], *[None] * 54, ONES[6]), (ONES[0], *made_up, ONES[6]), {0, 55})
    assert len(positions([None] * 56, made_up, ())) == 56


def test_a_held_device_that_would_go_and_more_devices_than_before_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"holds 1g.10gb .*cap3.*\[SW-REPARTITION-HELD\]"):
        positions(ONES, ONES[:3], {3})
    with pytest.raises(InvalidInputError, match=r"holds a pad.*\[SW-REPARTITION-HELD\]"):
        positions((*ONES[:3], None), ONES[:3], {3})
    with pytest.raises(InvalidInputError, match="SW-REPARTITION-HELD"):
        positions(ONES[:3], ONES[:3], {3})
    with pytest.raises(InvalidInputError, match=r"7 devices.*counts 4.*\[SW-REPARTITION-CONF\]"):
        positions(ONES[:4], ONES, ())


def test_a_device_that_got_the_files_of_another_type_is_not_the_same() -> None:
    same_files = Device("2g.20gb", ONES[0].files)
    with pytest.raises(InvalidInputError, match="SW-REPARTITION-HELD"):
        positions(ONES, (same_files, *ONES[2:]), {0})


def test_pads_are_of_a_type_for_each_run_and_of_a_name_each() -> None:
    found = padded((None, ONES[0], None, None), "NVIDIA", "/dev")
    assert [one.gres_type for one in found] == ["pad0", "1g.10gb", "pad2", "pad2"]
    assert [one.files for one in found if one.gres_type != "1g.10gb"] == [
        ("/dev/nvidia-caps/nvidia-cap1",),
        ("/dev/nvidia-caps/./nvidia-cap1",),
        ("/dev/nvidia-caps/././nvidia-cap1",),
    ]


SLURM_CONF = """ClusterName=a
# NodeName=gpu01 Gres=gpu:old:1
NodeName=gpu01 CPUs=16 Gres=gpu:1g.10gb:2,gpu:pad2:1 Weight=3 # ours
NodeName=gpu[02-04] Gres=gpu:3g.40gb:1
GresTypes=gpu
"""
GRES_CONF = """AutoDetect=nvml
NodeName=gpu01 AutoDetect=off Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,/dev/a
NodeName=gpu01 AutoDetect=off Name=gpu Type=pad2 File=/dev/b
NodeName=gpu01 AutoDetect=off Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,/dev/c
NodeName=gpu[02-04] Name=gpu Type=3g.40gb File=/dev/nvidia0
"""
FIRST, SECOND = (Device("1g.10gb", ("/dev/nvidia0", f"/dev/{name}")) for name in "ac")


def test_slurm_s_order_is_by_type_as_in_slurm_conf() -> None:
    assert node_positions(SLURM_CONF, GRES_CONF, "gpu01") == (FIRST, SECOND, None)
    other = SLURM_CONF.replace("gpu:1g.10gb:2,gpu:pad2:1", "gpu:pad2:1,gpu:1g.10gb:2")
    assert node_positions(other, GRES_CONF, "gpu01") == (None, FIRST, SECOND)


def test_what_is_written_is_read_as_it_was_meant_and_the_rest_stays() -> None:
    arranged = (None, SECOND, FIRST)
    devices = padded(arranged, "NVIDIA", "/dev")
    slurm_conf = with_node_gres(SLURM_CONF, "gpu01", node_gres(devices))
    new_gres = with_node_lines(GRES_CONF, "gpu01", gres_conf("gpu01", devices))
    assert node_positions(slurm_conf, new_gres, "gpu01") == arranged
    assert slurm_conf == SLURM_CONF.replace("1g.10gb:2,gpu:pad2:1", "pad0:1,gpu:1g.10gb:2")
    others = [line for line in GRES_CONF.splitlines() if "gpu01" not in line]
    assert [line for line in new_gres.splitlines() if "gpu01" not in line] == others


def test_a_node_keeps_its_other_gres() -> None:
    text = with_node_gres("NodeName=gpu01 Gres=nvme:2,gpu:a:1,gpu:b:2 CPUs=4\n", "gpu01", "gpu:c:3")
    assert text == "NodeName=gpu01 Gres=gpu:c:3,nvme:2 CPUs=4\n"


def test_a_node_without_gres_gets_it_before_its_comment() -> None:
    text = with_node_gres("NodeName=gpu01 CPUs=16  # ours\n", "gpu01", "gpu:a100:1")
    assert text == "NodeName=gpu01 CPUs=16 Gres=gpu:a100:1  # ours\n"


@pytest.mark.parametrize(
    ("slurm_conf", "gres_conf_text", "node", "words"),
    [
        (SLURM_CONF, GRES_CONF, "gpu02", "gpu02 shares a line"),
        (SLURM_CONF, GRES_CONF, "gpu09", "no line of its own"),
        (SLURM_CONF.replace(":2,", ":3,"), GRES_CONF, "gpu01", "don't have the same devices"),
        (SLURM_CONF, "Name=gpu File=/dev/nvidia0\n", "gpu01", "a line for the GPUs of all nodes"),
        (
            SLURM_CONF,
            GRES_CONF.replace("AutoDetect=off ", ""),
            "gpu01",
            "not for exactly one device",
        ),
        (
            SLURM_CONF,
            GRES_CONF.replace("/dev/b", "/dev/b,/dev/d"),
            "gpu01",
            "not for exactly one device",
        ),
        (
            SLURM_CONF,
            GRES_CONF.replace("/dev/b", "/dev/b[1-2]"),
            "gpu01",
            "not for exactly one device",
        ),
        (SLURM_CONF, GRES_CONF.replace("/dev/b", "/dev/b Cores=0-7"), "gpu01", "has cores"),
        (SLURM_CONF.replace("Weight=3 # ours", "\\\n"), GRES_CONF, "gpu01", "over several"),
        (SLURM_CONF.replace("gpu[02-04]", "gpu[01-04]"), GRES_CONF, "gpu01", "shares a line"),
    ],
)
def test_lines_that_can_t_be_changed_alone_are_refused(
    slurm_conf: str, gres_conf_text: str, node: str, words: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"{words}.*\[SW-REPARTITION-CONF\]"):
        node_positions(slurm_conf, gres_conf_text, node)


CONF = "ClusterName=c\nNodeName=gpu01 CPUs=4 Gres=gpu:1g.10gb:1\nNodeName=gpu02 CPUs=4\n"
GRES = "NodeName=gpu01 AutoDetect=off Name=gpu Type=1g.10gb File=/dev/nvidia0\n"
EVIL = "\nPrologSlurmctld=/tmp/evil\n"


@pytest.mark.parametrize(
    "device",
    [
        Device(f"nvidia_a100{EVIL}#", ("/dev/nvidia0",)),
        Device("nvidia_a100\n", ("/dev/nvidia0",)),
        Device("nvidia_a100:7,gpu:b", ("/dev/nvidia0",)),
        Device("nvidia a100", ("/dev/nvidia0",)),
        Device("", ("/dev/nvidia0",)),
        Device("7", ("/dev/nvidia0",)),
        Device("a" * 129, ("/dev/nvidia0",)),
        Device("a100", (f"/dev/nvidia0{EVIL}",)),
        Device("a100", ("/dev/nvidia0 Count=9",)),
        Device("a100", ("/dev/nvidia[0-9]",)),
        Device("a100", ("dev/nvidia0",)),
        Device("a100", ()),
    ],
)
def test_a_device_that_would_be_more_than_one_line_is_never_written(device: Device) -> None:
    """Whoever read it: this is the second wall behind the reader of a node's inventory."""
    for write in (node_gres, lambda found: gres_conf("gpu01", found)):
        with pytest.raises(InvalidInputError, match="SW-REPARTITION-CONF") as caught:
            write([device])
        assert caught.value.refusal.message.isprintable()


def test_neither_is_a_node_s_name_or_a_line_that_is_not_its_own() -> None:
    with pytest.raises(InvalidInputError, match="SW-REPARTITION-CONF"):
        gres_conf(f"gpu01{EVIL}", [ONES[0]])
    with pytest.raises(InvalidInputError, match="SW-REPARTITION-CONF"):
        gres_conf("gpu01", [ONES[0]] * 1025)
    for gres in (f"gpu:a:1{EVIL}", "gpu:a:1 State=DOWN", "gpu:a:1#"):
        with pytest.raises(InvalidInputError, match="SW-REPARTITION-CONF"):
            with_node_gres(CONF, "gpu01", gres)
    own = "NodeName=gpu01 AutoDetect=off Name=gpu"
    for line in (f"{own} Type=a File=/dev/a{EVIL}", own.replace("gpu01", "gpu02"), "include /x"):
        with pytest.raises(InvalidInputError, match="SW-REPARTITION-CONF"):
            with_node_lines(GRES, "gpu01", [line])


def test_files_go_back_to_what_was_kept_with_what_others_have_changed_since() -> None:
    told = with_node_gres(CONF, "gpu01", "gpu:3g.40gb:1")
    assert as_kept(told, CONF, "gpu01") == CONF
    by_others = told.replace("CPUs=4\n", "CPUs=8\n") + "NodeName=gpu03\n"
    assert as_kept(by_others, CONF, "gpu01") == (
        CONF.replace("CPUs=4\n", "CPUs=8\n") + "NodeName=gpu03\n"
    )
    two = with_node_lines(GRES, "gpu01", gres_conf("gpu01", ONES[:2]))
    assert as_kept(two, GRES, "gpu01") == GRES
    assert as_kept(f"# new\n{two}", GRES, "gpu01") == f"# new\n{GRES}"
    assert as_kept("# all gone", GRES, "gpu01") == f"# all gone\n{GRES.strip()}"
