"""What a GPU board draws in watts: without a process, with an idle one, and at work.

A model, not a measurement: where the driver tells watts or joules, those count. It is for what has
not run yet, and for what part of a measured figure is the price of being awake.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_BEND = 1.4
"""The exponent of Fan, Weber and Barroso (Power provisioning for a warehouse-sized computer, ISCA
2007), fitted to servers: of (2u - u ** 1.4), which is 0 at 0 and 1 at 1."""


@dataclass(frozen=True)
class BoardPower:
    """Watts of one board, its memory included, its node not.

    Attributes:
        idle_w: no process has it open.
        context_w: what one more process with a CUDA context adds, idle; others add nothing, and
            neither does memory in use (less than 0.02 W a GB).
        load_w: all of it infers. Neither the TDP nor the limit, which few loads reach.
        source: where the figures come from.
    """

    idle_w: float
    context_w: float
    load_w: float
    source: str


_SMI = "public outputs of nvidia-smi without a process, persistence mode on or off"
_PARKED = "arXiv 2605.23918 (26 to 50 W on HBM, 66 W on L40S)"
_SHARE = "0.85 of the TDP, as of H100 and H200"

POWERS: Mapping[str, BoardPower] = MappingProxyType(
    {
        "A30-24GB": BoardPower(
            28, 26, 140, f"idle: {_SMI}, 27 to 35 W; context: as A100; load: {_SHARE}, 165 W"
        ),
        "A100-40GB": BoardPower(
            43, 26, 340, f"idle: {_SMI}, 42 to 51 W; context: {_PARKED}; load: {_SHARE}, 400 W"
        ),
        "A100-80GB": BoardPower(
            52, 26, 340, f"idle: {_SMI}, 50 to 68 W; context: {_PARKED}; load: {_SHARE}, 400 W"
        ),
        "H100-80GB": BoardPower(
            70,
            50,
            600,
            f"idle: {_SMI}, 68 to 74 W; context: {_PARKED}; load: ML.ENERGY v3, batches of 128 "
            "(300 W at batches of 1); TDP 700 W",
        ),
        "H200-141GB": BoardPower(
            80,
            50,
            593,
            "idle, load: Serial Alice's GPU benchmark (2026), 80.3 and 592.8 W; context: as H100; "
            "TDP 700 W",
        ),
        "B200-180GB": BoardPower(
            141, 50, 850, f"idle: {_SMI}, 136 to 145 W; context: as H100; load: {_SHARE}, 1,000 W"
        ),
        "L40S-48GB": BoardPower(
            22,
            66,
            298,
            f"idle: {_SMI}, P8, 20 to 22 W; context: {_PARKED}; load: {_SHARE}, 350 W",
        ),
    }
)
"""By model, as in ``mig_profiles.boards()`` (an L40S can't be cut). SXM boards, where there are
several. Other boards' figures are not published, or were not found."""


def power_w(board: BoardPower, has_context: bool, activity: float) -> float:
    """Watts of a board at an activity.

    A slice at work keeps all of the board in its high state, so the first slices cost more than the
    last: the curve is concave, 0.22 of the way from idle with a context to load at an activity of a
    seventh, 0.62 at a half. It was fitted to servers. Nobody has published one for slices, and no
    simple model is right for all loads (arXiv 2501.17752). A straight line (Kepler, CEEMS) is up to
    0.12 of that way lower; one H100 that answers one request at a time is higher, at 0.38.

    Args:
        board: what it draws.
        has_context: whether a process holds any part of it. Activity says so, too.
        activity: the mean share of the board's multiprocessors that work, 0 to 1, as of
            DCGM_FI_PROF_GR_ENGINE_ACTIVE times an instance's share. More counts as 1: DCGM has told
            more than 1 of instances (NVIDIA/DCGM issue 152).

    Raises:
        ValueError: the activity is negative or no number.
    """
    if math.isnan(activity) or activity < 0:
        raise ValueError(f"an activity of {activity}")
    if not has_context and activity == 0:
        return board.idle_w
    used = min(activity, 1.0)
    awake_w = board.idle_w + board.context_w
    return awake_w + (2 * used - math.pow(used, _BEND)) * (board.load_w - awake_w)
