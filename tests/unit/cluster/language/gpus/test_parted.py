"""Tests that mig-parted's configuration files are read and written."""

from collections import Counter

import pytest
from stand_ins.emulated_gpus import two_boards

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus import parted
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import board

CONFIG = """
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  balanced:
    - device-filter: ["0x20B210DE", "0x233510de"]
      devices: [0, 2]
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "3g.40gb": 1
        "7g.80gb": 0
    - devices: all
      mig-enabled: true
      mig-devices: {}
"""
A100 = board("A100-80GB")


def test_a_file_is_read_as_mig_parted_does() -> None:
    configs = parted.parse(CONFIG)
    assert list(configs) == ["all-disabled", "balanced"]
    assert configs["all-disabled"] == (parted.Entry((), None, mig=False, counts={}),)
    first, second = configs["balanced"]
    assert (first.pci_device_ids, first.devices) == ((0x20B2, 0x2335), (0, 2))
    assert first.counts == {"1g.10gb": 2, "3g.40gb": 1}
    assert (second.devices, second.mig, second.counts) == (None, True, {})
    assert first.concerns(A100)
    assert not first.concerns(board("A30-24GB"))
    assert second.concerns(board("A30-24GB"))


def one_entry(text: str) -> str:
    return f"{{version: v1, mig-configs: {{a: [{{{text}}}]}}}}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "not YAML"),
        ("version: v2", "version is not v1"),
        ("- 1", "version is not v1"),
        ("version: v1", "has no configuration"),
        ("{version: v1, mig-configs: {a: []}}", "a has no entry"),
        (one_entry("devices: all"), "the keys of an entry are devices"),
        (one_entry("devices: all, mig-enabled: false, x: 1"), "the keys of an entry are devices"),
        (one_entry("devices: all, mig-enabled: true"), "where mig-enabled is true"),
        (
            one_entry("devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"),
            "where mig-enabled is true",
        ),
        (one_entry("devices: some, mig-enabled: false"), "list of GPU numbers"),
        (one_entry("devices: [true], mig-enabled: false"), "list of GPU numbers"),
        (
            one_entry("devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}"),
            "a number for each profile",
        ),
        (
            one_entry("devices: all, mig-enabled: true, mig-devices: [1]"),
            "a number for each profile",
        ),
        (one_entry("devices: all, mig-enabled: false, device-filter: A100"), "PCI device"),
        (one_entry("devices: all, mig-enabled: false, device-filter: 7"), "PCI device"),
    ],
)
def test_what_is_no_configuration_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        parted.parse(text)


def test_counts_are_placed_so_that_most_stays_possible() -> None:
    layout = parted.placed(A100, {"1g.10gb": 1})
    # There it takes the slice that no other profile of one slice could share with a larger one.
    assert layout == frozenset({Placement("1g.10gb", 6, 1)})
    layout = parted.placed(A100, {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2})
    assert layout is not None
    assert Counter(one.profile for one in layout) == {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}


def test_counts_that_do_not_fit_have_no_layout() -> None:
    assert parted.placed(A100, {"3g.40gb": 2, "1g.10gb": 1}) is None
    assert parted.placed(A100, {}) == frozenset()


def test_profiles_go_by_every_name_that_drivers_have_for_them() -> None:
    gb200 = board("GB200-186GB")
    assert parted.lacking(gb200, {"1g.24gb": 7, "1g.5gb": 1}) == ("1g.5gb",)
    layout = parted.placed(gb200, {"1g.24gb": 7})
    assert layout is not None
    assert {one.profile for one in layout} == {"1g.23gb"}
    both = parted.placed(gb200, {"1g.23gb": 1, "1g.24gb": 5})
    assert both is not None
    assert len(both) == 6
    assert parted.placed(A100, {"1c.3g.40gb": 2}) is None


def test_a_node_comes_back_from_its_own_file() -> None:
    with two_boards() as node:
        for start in (0, 1):
            node.create(Placement("1g.10gb", start, 1))
        text = parted.text_of("now", node.gpus())
    assert parted.parse(text) == {
        "now": (
            parted.Entry((), (0,), mig=True, counts={"1g.10gb": 2}),
            parted.Entry((), (1,), mig=False, counts={}),
        )
    }
