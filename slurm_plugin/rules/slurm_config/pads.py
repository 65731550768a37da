"""Types of GPUs that stand for instances which could exist and do not."""

import re

PAD = "pad"
"""Types with this prefix and a number stand for instances that could exist and do not. They keep a
node's number of devices constant, since jobs survive no change of that number in Slurm."""

_PAD_TYPE = re.compile(rf"{PAD}[0-9]+")


def is_pad(gres_type: str) -> bool:
    """Whether a type is none that a job may ask for."""
    return _PAD_TYPE.fullmatch(gres_type) is not None
