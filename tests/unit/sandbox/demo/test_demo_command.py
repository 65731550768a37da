import runpy
import sys

import pytest


class Failing:
    """Fails the import of the demo's command as it would come from deeper down."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "slicewise.sandbox.demo.cli":
            raise self._error


def started(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> SystemExit:
    monkeypatch.delitem(sys.modules, "slicewise.sandbox.demo.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Failing(error), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("slicewise.sandbox.demo", run_name="__main__")
    return ended.value


def test_an_interrupt_while_its_libraries_are_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert started(monkeypatch, KeyboardInterrupt()).code == 130
    assert capsys.readouterr().err == "Interrupted.\n"


@pytest.mark.parametrize("name", ["matplotlib.pyplot", "tritonclient.http"])
def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str
):
    missing = ModuleNotFoundError("No module", name=name)
    code = str(started(monkeypatch, missing).code)
    assert "slicewise[sandbox]" in code
    assert "SW-PROGRAM" in code


def test_a_module_of_our_own_that_is_missing_is_a_defect(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ModuleNotFoundError):
        started(monkeypatch, ModuleNotFoundError("No module", name="sandbox.nothing"))
