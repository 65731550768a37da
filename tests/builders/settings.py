"""Settings of small sites."""

from collections.abc import Sequence
from typing import Any

from slicewise.cluster.settings.file import Settings

SITE_TOML = """\
[cluster]
name = "c"
partitions = ["gpu"]
[gpus."A100-80GB"]
types = ["1g.10gb"]
"""
"""The file of the same settings; other tables may follow."""


def site_settings(
    types: Sequence[str] = ("1g.10gb",), whole: Sequence[str] = (), name: str = "c", **sections: Any
) -> Settings:
    """The settings of a cluster with a managed partition gpu of A100s; the rest is as usual.

    ``types`` are the A100s' MIG types, ``whole`` the types of whole ones.
    """
    return Settings.model_validate(
        {
            "cluster": {"name": name, "partitions": ["gpu"]},
            "gpus": {"A100-80GB": {"types": types, "whole": whole}},
            **sections,
        }
    )
