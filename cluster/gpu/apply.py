"""The node's part of a repartition: changes one GPU from one layout to another, all or nothing."""

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from slicewise.cluster.gpu.driver import Driver, opened
from slicewise.cluster.gpu.node_files import ROOT
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, SlicewiseError
from slicewise.cluster.language.gpus.inventory import Gpu, Instance
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import Board
from slicewise.cluster.language.gpus.placement_text import placements_text, read_placements
from slicewise.cluster.language.gpus.vendors import accelerator

_LOCK = Path("run/slicewise-cut.lock")
_ROOT_ONLY = 0o600
"""A user who may read the file could lock it, and keep every cut waiting."""


def cut(gpu_uuid: str, before: str, after: str, root: Path = ROOT) -> Gpu:
    """Cut a GPU that has the instances ``before`` so that it has those of ``after``. Needs root.

    Both are text as ``placement_text`` writes it. If an earlier call was killed and left the GPU
    between them, this call completes the change; a GPU that has ``after`` is left as it is. Going
    back is the same call with both swapped. MIG mode is never changed.

    Raises OutsideError: SW-NODE-GPU if the GPU does not answer, has one mode for all of it or does
    not stay in MIG mode, SW-MIG-CHANGED if it has other instances than these, SW-MIG-IN-USE if a
    process holds one that must go (nothing is done then), SW-DRIVER if a call of the driver
    failed: then the GPU is as before, or the message says that it is not. InvalidInputError:
    SW-VALUE, SW-ROOT.
    """
    with _alone(root), opened() as driver:
        gpu, board = _gpu(driver, gpu_uuid, root)
        old, new = read_placements(before, board), read_placements(after, board)
        _require_between(gpu, old, new)
        _require_free(
            gpu, [instance for instance in gpu.instances if not _stays(instance, old, new)]
        )
        try:
            _make(driver, gpu, old, new, root)
        except SlicewiseError as error:
            raise _failed(gpu, error, _go_back(driver, gpu_uuid, old, new, root)) from None
        return _gpu(driver, gpu_uuid, root)[0]


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Let one cut at a time run on a node: an earlier call may outlive its caller."""
    try:
        lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _ROOT_ONLY)
    except PermissionError:
        raise InvalidInputError(Code.ROOT, "Only root can cut GPUs: nothing was done.") from None
    with os.fdopen(lock, "w"):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _gpu(driver: Driver, gpu_uuid: str, root: Path) -> tuple[Gpu, Board]:
    gpu = next((gpu for gpu in driver.read_inventory(root).gpus if gpu.uuid == gpu_uuid), None)
    if gpu is None or gpu.board is None or not (gpu.mig and gpu.mig_pending):
        what = (
            "does not answer"
            if gpu is None
            else "is not in MIG mode, or leaves it at the next reset"
        )
        raise OutsideError(
            Code.NODE_GPU,
            f"GPU {gpu_uuid} {what}: it was not touched.",
            "See which GPUs there are: slicewise node probe",
        )
    if not accelerator(gpu.board.vendor).has_parts:
        raise OutsideError(
            Code.NODE_GPU,
            f"GPU {gpu_uuid} has one mode for all of it, which Slicewise does not change: it was"
            " not touched.",
            "Change it on an empty node, with the vendor's tool: amd-smi set --help",
        )
    return gpu, gpu.board


def _require_between(gpu: Gpu, old: Collection[Placement], new: Collection[Placement]) -> None:
    placements = {instance.placement for instance in gpu.instances}
    both = set(old) & set(new)
    if both <= placements <= {*old, *new}:
        return
    raise OutsideError(
        Code.MIG_CHANGED,
        f"GPU {gpu.uuid} has {placements_text(placements) or 'no instance'}, not"
        f" {placements_text(old) or 'none'}: it was not touched.",
        "It was cut outside Slicewise. Look again: slicewise repartition survey",
    )


def _require_free(gpu: Gpu, going: Collection[Instance]) -> None:
    for instance in going:
        if instance.holders:
            pids = ", ".join(str(holder.pid) for holder in instance.holders)
            raise OutsideError(
                Code.MIG_IN_USE,
                f"Process {pids} holds {placements_text([instance.placement])} of {gpu.uuid}:"
                " nothing was changed.",
                "See whose process it is: slicewise node probe",
            )


def _stays(instance: Instance, old: Collection[Placement], new: Collection[Placement]) -> bool:
    """Whether the instance need not go, and was not left half made by a call that was killed."""
    return instance.placement in new and (instance.placement in old or len(instance.computes) == 1)


def _make(
    driver: Driver, gpu: Gpu, old: Collection[Placement], new: Collection[Placement], root: Path
) -> None:
    staying = {instance.placement for instance in gpu.instances if _stays(instance, old, new)}
    going = [instance.gi_id for instance in gpu.instances if instance.placement not in staying]
    coming = sorted(set(new) - staying, key=lambda each: each.start)
    driver.change(gpu.uuid, going, coming, root)


def _go_back(
    driver: Driver,
    gpu_uuid: str,
    old: Collection[Placement],
    new: Collection[Placement],
    root: Path,
) -> str:
    """Cut the GPU as it was before; return in words whether that succeeded."""
    try:
        gpu, _ = _gpu(driver, gpu_uuid, root)
        _make(driver, gpu, new, old, root)
    except SlicewiseError as error:
        return f"going back failed, too: {error.refusal.message} It has neither layout now"
    return "it is cut as before"


def _failed(gpu: Gpu, error: SlicewiseError, back: str) -> OutsideError:
    return OutsideError(
        Code.DRIVER,
        f"GPU {gpu.uuid} was not cut: {error.refusal.message} ({error.refusal.code}); {back}.",
        "See the kernel's log (dmesg). The same command may be run again.",
    )
