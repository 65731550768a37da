import re
from pathlib import Path

from slicewise.cluster.settings.read import load_settings

ETC = Path(__file__).resolve().parents[4] / "etc"


def test_the_example_settings_are_valid_and_their_defaults_true(tmp_path: Path) -> None:
    example = load_settings(ETC / "slicewise.toml")
    text = (ETC / "slicewise.toml").read_text()
    written_out = tmp_path / "slicewise.toml"
    written_out.write_text(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE))
    assert load_settings(written_out) == example
    assert written_out.read_text() != text


def test_the_example_weights_are_what_the_settings_cost() -> None:
    costs = load_settings(ETC / "slicewise.toml").costs
    snippet = (ETC / "slurm.conf.snippet").read_text()
    weights = dict(re.findall(r"GRES/gpu:([\w.]+)=(\d+)", snippet))
    assert weights == {name: str(cost) for name, cost in costs.items()}
