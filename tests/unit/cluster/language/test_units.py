import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import millislices_from_text, slices_text


@pytest.mark.parametrize(
    ("text", "millislices"),
    [("0", 0), ("4", 4000), ("3.5", 3500), ("0.001", 1), ("1.750", 1750), ("70", 70_000)],
)
def test_slices_are_read_exactly(text: str, millislices: int) -> None:
    assert millislices_from_text(text, "nominal") == millislices


@pytest.mark.parametrize(
    "text",
    [
        "",
        "many",
        "-1",
        "0.0005",
        "NaN",
        "Infinity",
        "1,5",
        "1e40",
        "1e999999999",
        "1_0",
        "7\n",
        "٣",
    ],
)
def test_other_text_is_refused_with_its_key(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"nominal: .*0 to 1000000.*3\.5.*\[SW-VALUE\]"):
        millislices_from_text(text, "nominal")


@pytest.mark.parametrize(
    ("millislices", "text"),
    [(0, "0"), (4000, "4"), (3500, "3.5"), (1, "0.001"), (70_000, "70"), (-1500, "-1.5")],
)
def test_slices_are_written_without_a_needless_tail(millislices: int, text: str) -> None:
    assert slices_text(millislices) == text
