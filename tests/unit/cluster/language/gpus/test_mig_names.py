"""Tests the sizes of MIG instances in the names of GRES types."""

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.mig_names import has_mig_size, mig_name, short_name
from slicewise.cluster.language.gpus.mig_profiles import (
    board,
    boards,
    boards_named,
    cost_millislices,
    profile_of,
)
from slicewise.cluster.settings.file import GpuSettings


@pytest.mark.parametrize(
    ("model", "gres_type", "profile"),
    [
        ("A100-80GB", "3g.40gb", "3g.40gb"),
        ("A100-80GB", "a100l.3g.40gb", "3g.40gb"),
        ("A100-80GB", "nvidia_a100_3g.39gb", "3g.40gb"),
        ("A100-80GB", "A100-1G.10GB+ME", "1g.10gb+me"),
        ("A100-80GB", "1g.10gb.me", "1g.10gb+me"),
        ("A100-80GB", "1g-10gb-me", "1g.10gb+me"),
        ("A100-80GB", "1g_20gb_debug", "1g.20gb"),
        ("A100-40GB", "1g.10gb", "1g.10gb"),
        ("GB200-186GB", "1g.20gb", "1g.23gb"),
        ("RTX-PRO-6000-Blackwell-96GB", "1g.24gb-me", "1g.24gb-me"),
        ("RTX-PRO-6000-Blackwell-96GB", "x.2g.48gb.me.all", "2g.48gb+me.all"),
        ("MI300X-192GB", "mi300x_cpx.nps4", "cpx.nps4"),
        ("A100-80GB", "1c.3g.40gb", None),
        ("A100-80GB", "3g.20gb", None),
        ("A100-80GB", "2g.20gb+gfx", None),
        ("A100-80GB", "1g.10gb_3g.40gb", None),
        ("A100-80GB", "11g.10gb", None),
    ],
)
def test_the_profile_in_a_types_name(model: str, gres_type: str, profile: str | None) -> None:
    if profile is not None:
        assert profile_of(board(model), gres_type).name == profile
        return
    assert has_mig_size(gres_type)
    with pytest.raises(InvalidInputError) as refused:
        profile_of(board(model), gres_type)
    assert "size in its name: 1g.18gb, nvidia_h200_1g.18gb" in refused.value.refusal.hint


def test_each_profile_is_known_by_what_a_process_sees_of_its_memory() -> None:
    """Rounded in any way, as Slurm and drivers do, and priced as the profile."""
    for on in boards().values():
        for profile in on.profiles.values():
            said = mig_name(profile.name)
            if said is None or profile.memory_mib is None:
                continue
            for memory_gb in (profile.memory_mib // 1024, -(-profile.memory_mib // 1024)):
                spelled = f"Site.{said.compute_slices}g.{memory_gb}gb{said.extension}"
                assert profile_of(on, spelled) == profile, (on.model, spelled)
                assert cost_millislices(on, spelled, 1) == cost_millislices(on, profile.name, 1)


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("nvidia_a100_80gb_pcie", ["A100-80GB"]),
        ("a100l", ["A100-40GB", "A100-80GB"]),
        ("nvidia_h200_nvl", ["H200-141GB"]),
        ("nvidia_h20", ["H100-96GB/GH200-96GB"]),
        ("nvidia_h20-3e", ["H200-141GB"]),
        ("nvidia_a100x", ["A100-80GB"]),
        ("rtxpro6000", ["RTX-PRO-6000-Blackwell-96GB"]),
        ("nvidia_rtx_pro_5000_blackwell", []),
        ("nvidia_h100_nvl", ["H100-94GB-NVL"]),
        ("nvidia_gh200_480gb", ["H100-96GB/GH200-96GB", "GH200-144GB"]),
        ("a300", []),
        ("l40s", []),
    ],
)
def test_the_boards_that_a_name_says(text: str, models: list[str]) -> None:
    assert [one.model for one in boards_named(text)] == models


def test_a_type_with_a_mig_size_is_no_whole_gpu() -> None:
    with pytest.raises(ValueError, match=r"a100l\.1g\.10gb is no whole GPU"):
        GpuSettings(whole=("a100l.1g.10gb",))


@pytest.mark.parametrize(
    ("gres_type", "short"),
    [("a100l.1G.10gb", "1g.10gb"), ("nvidia_l40s", "l40s"), ("mi300x_cpx.nps4", "cpx.nps4")],
)
def test_a_type_is_shown_without_its_gpu(gres_type: str, short: str) -> None:
    assert short_name(gres_type) == short
