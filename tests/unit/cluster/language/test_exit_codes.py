import re
from pathlib import Path

import pytest

from cluster.language.exit_codes import _CODES, KINDS, MEANINGS, ExitCode, exit_code_of

ERRORS = Path(__file__).parents[4] / "docs" / "reference" / "errors.md"
CODE = re.compile(r"^\| (SW-[A-Z-]+) \|", re.MULTILINE)
FOR_CLIENTS = {
    f"SW-GATEWAY-{word}"
    for word in (
        *(
            "CONCURRENT",
            "DENIED",
            "ERROR",
            "FAILING",
            "FULL",
            "HEADERS",
            "JSON",
            "KEY",
            "KEY-SERVICE",
            "KEY-TENANT",
            "LOST",
            "METADATA",
            "METHOD",
            "MODEL",
            "MODEL-UNSEEN",
        ),
        *("RATE", "REQUEST", "SEQUENCE", "SLOW", "STARTING", "STATISTICS", "UNKNOWN", "WAKING"),
    )
}
"""What the gateway answers to a service's clients: no command ends with it."""


def test_every_documented_code_of_a_command_has_one_exit_code():
    """A new error code gets its kind in cluster/language/exit_codes.py."""
    documented = set(CODE.findall(ERRORS.read_text(encoding="utf-8")))
    assert documented - FOR_CLIENTS == KINDS.keys()
    assert sum(len(codes.split()) for codes in _CODES.values()) == len(KINDS)


def test_every_exit_code_has_a_meaning():
    assert list(MEANINGS) == list(ExitCode)


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("SW-LEDGER-IMBALANCE", 1),
        ("SW-SETTINGS", 2),
        ("SW-SERVICE-UNKNOWN", 3),
        ("SW-FORBIDDEN", 4),
        ("SW-QUOTA-EXCEEDED", 5),
        ("SW-DAEMON-DOWN", 6),
        ("SW-TIMEOUT", 7),
        ("SW-SERVICE-FAILING", 1),
        ("SW-TENANT-IMPORT", 8),
        ("SW-BUSY", 75),
        ("SW-OF-A-LATER-VERSION", 1),
    ],
)
def test_scripts_rely_on_these_numbers(code: str, number: int):
    assert exit_code_of(code) == number
