"""The driver of a node's GPUs is found among those of all vendors."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from slicewise.cluster.gpu import driver
from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.vendors import ACCELERATORS


@dataclass
class FakeDriver:
    """A driver that fails as told when it is opened."""

    version: str
    fails: Exception | None = None
    is_open: bool = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        if self.fails is not None:
            raise self.fails
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False

    def read_inventory(self, root: Path) -> Inventory:
        assert self.is_open
        return Inventory(self.version, (), ())

    def change(
        self, gpu_uuid: str, going: Collection[int], coming: Collection[Placement], root: Path
    ) -> None:
        raise NotImplementedError


def missing(vendor: str) -> UnreachableError:
    return UnreachableError(f"SW-{vendor}-MISSING", f"No driver of {vendor}.", "")


def use(monkeypatch: pytest.MonkeyPatch, *drivers: FakeDriver) -> None:
    monkeypatch.setattr(driver, "_DRIVERS", {one.version: one for one in drivers})


def test_every_vendor_has_a_driver() -> None:
    assert driver._DRIVERS.keys() == {one.vendor for one in ACCELERATORS}


def test_the_first_driver_that_answers_is_taken_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = FakeDriver("2")
    use(monkeypatch, FakeDriver("1", missing("A")), answers, FakeDriver("3"))
    assert driver.read_inventory().driver == "2"
    assert not answers.is_open
    with driver.opened() as found:
        assert found is answers
        assert answers.is_open


def test_where_none_answers_the_first_one_s_words_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, FakeDriver("1", missing("A")), FakeDriver("2", missing("B")))
    with pytest.raises(UnreachableError, match="SW-A-MISSING"):
        driver.read_inventory()


def test_a_driver_that_is_there_and_fails_hides_behind_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = OutsideError("SW-DRIVER", "It answered with an error.", "")
    use(monkeypatch, FakeDriver("1", broken), FakeDriver("2"))
    with pytest.raises(OutsideError, match="answered with an error"):
        driver.read_inventory()
