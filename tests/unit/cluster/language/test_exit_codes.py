from slicewise.cluster.language.exit_codes import MEANINGS, ExitCode


def test_every_exit_code_has_a_meaning():
    assert list(MEANINGS) == list(ExitCode)
