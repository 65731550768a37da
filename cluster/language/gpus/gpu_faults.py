"""Finds faults of a node's GPUs, and differences between its driver and the profile table."""

from collections.abc import Iterator

from slicewise.cluster.language.gpus.inventory import Gpu, Instance, Inventory
from slicewise.cluster.language.gpus.mig_profiles import Board, MigProfile, boards

_OF_APPLICATIONS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a program causes on a healthy board: those that NVIDIA's device plugin for Kubernetes
ignores, too.
"""


def faults(inventory: Inventory) -> tuple[str, ...]:
    """What an operator should look into, one sentence each."""
    return (
        *(f"GPU {lost.index} can't be reached: {lost.error}." for lost in inventory.lost),
        *(f"GPU {gpu.index}: {fault}." for gpu in inventory.gpus for fault in gpu_faults(gpu)),
    )


def gpu_faults(gpu: Gpu) -> tuple[str, ...]:
    """The faults of one board, without its number and the full stop."""
    return (*_health_faults(gpu), *_mode_faults(gpu), *_instance_faults(gpu))


def _health_faults(gpu: Gpu) -> Iterator[str]:
    health = gpu.health
    serious = [number for number in health.xids or () if number not in _OF_APPLICATIONS]
    if serious:
        yield f"the kernel logged Xid {', '.join(map(str, serious))}"
    if health.ecc_uncorrected:
        yield f"{health.ecc_uncorrected} uncorrected memory errors"
    if health.remap_failed:
        yield "a memory row could not be remapped: replace the board"
    elif health.remap_pending:
        yield "a memory row is remapped at the next reset"


def _mode_faults(gpu: Gpu) -> Iterator[str]:
    if gpu.mig != gpu.mig_pending:
        yield f"MIG mode is {_on(gpu.mig)} until a reset, then {_on(gpu.mig_pending)}"
    if gpu.mig and not gpu.instances:
        yield "MIG mode is on, but no instance is cut: no job can use it"


def _on(mode: bool) -> str:
    return "on" if mode else "off"


def _instance_faults(gpu: Gpu) -> Iterator[str]:
    for instance in gpu.instances:
        if len(instance.computes) != 1:
            yield (
                f"instance {instance.gi_id} ({instance.placement.profile}) has"
                f" {len(instance.computes)} compute instances: Slicewise uses those with one"
            )
        elif not has_capabilities(instance):
            yield (
                f"instance {instance.gi_id} ({instance.placement.profile}) has no capability"
                " device: nvidia-caps is not loaded"
            )


def has_capabilities(instance: Instance) -> bool:
    """Whether its device files are known, by which Slurm lets only one job use the instance."""
    minors = (instance.minor, *(compute.minor for compute in instance.computes))
    return None not in minors


def table_differences(board: Board) -> tuple[str, ...]:
    """Where the driver's profiles of a board differ from the table's; the driver's are valid."""
    table_board = boards().get(board.model)
    if table_board is None:
        return (f"{board.model} is not in the table: the driver's own profiles are used",)
    theirs = {profile.gi_profile_id: profile for profile in board.profiles.values()}
    ours = {profile.gi_profile_id: profile for profile in table_board.profiles.values()}
    return (
        *(f"the table lacks {profile.name}" for key, profile in theirs.items() if key not in ours),
        *(f"the driver lacks {profile.name}" for key, profile in ours.items() if key not in theirs),
        *(
            text
            for key, profile in ours.items()
            if key in theirs
            for text in _profile_differences(theirs[key], profile)
        ),
    )


def _profile_differences(driver: MigProfile, table: MigProfile) -> Iterator[str]:
    if driver.name not in (table.name, *table.aliases):
        yield f"the driver calls {table.name} {driver.name}"
    pairs = (
        ("compute slices", driver.compute_slices, table.compute_slices),
        ("memory slices", driver.memory_slices, table.memory_slices),
        ("starts", driver.starts, table.starts),
        ("instances at most", driver.max_instances, table.max_instances),
    )
    for what, theirs, ours in pairs:
        if theirs != ours:
            yield f"{table.name}: {what} {_text(theirs)} by the driver, {_text(ours)} in the table"


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
