"""Compares readers of safetensors: how long a model's tensors take from a file into memory.

    PYTHON -m studies.weight_readers FOLDER [--gib 1.5] [--rounds 5]

A file of random tensors is written to FOLDER. Each reader copies all of it into tensors that are
there already, as an engine fills its parameters: in an order drawn for each round, in processes of
their own, with the file on disk only and in the page cache. PYTHON has torch, safetensors,
fastsafetensors and runai-model-streamer; imports are not timed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from statistics import median

import torch

SEED = 20261130
_TENSORS = 48


def _read(path: Path, take: Callable[[str, torch.Tensor], None]) -> None:
    """Read the file as it is: no reader is faster than that without more than one request."""
    del take
    left = memoryview(bytearray(8 << 20))
    with path.open("rb", buffering=0) as file:
        while file.readinto(left):
            pass


def _safetensors(path: Path, take: Callable[[str, torch.Tensor], None]) -> None:
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 -- no mapping
            take(name, file.get_tensor(name))


def _fastsafetensors(path: Path, take: Callable[[str, torch.Tensor], None]) -> None:
    from fastsafetensors import fastsafe_open  # noqa: PLC0415

    with fastsafe_open([str(path)], nogds=True, device="cpu") as file:
        for name in file.keys():  # noqa: SIM118 -- no mapping
            take(name, file.get_tensor(name))


def _runai_streamer(path: Path, take: Callable[[str, torch.Tensor], None]) -> None:
    from runai_model_streamer import SafetensorsStreamer  # noqa: PLC0415

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        for name, tensor in streamer.get_tensors():
            take(name, tensor)


_BY_NAME = {
    "read": ("", _read),
    "safetensors": ("safetensors", _safetensors),
    "fastsafetensors": ("fastsafetensors", _fastsafetensors),
    "runai_streamer": ("runai_model_streamer", _runai_streamer),
}
"""Of each reader the module that it imports, and what it does."""


def _shapes(gib: float) -> dict[str, tuple[int, int]]:
    rows = int(gib * (1 << 30)) // _TENSORS // 2 // 4096
    return {f"layer.{number}": (rows, 4096) for number in range(_TENSORS)}


def _forget(path: Path) -> None:
    """Take a file out of the page cache."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _once(reader: str, path: Path, gib: float, state: str) -> float:
    """Read it in this process; seconds."""
    parameters = {
        name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in _shapes(gib).items()
    }
    taken: list[str] = []

    def take(name: str, tensor: torch.Tensor) -> None:
        parameters[name].copy_(tensor)
        taken.append(name)

    module, read = _BY_NAME[reader]
    if module:
        import_module(module)
    if state == "disk":
        _forget(path)
    else:
        _read(path, take)
    started_s = time.perf_counter()
    read(path, take)
    seconds = time.perf_counter() - started_s
    if reader != "read" and sorted(taken) != sorted(parameters):
        raise SystemExit(f"{reader} gave {len(taken)} of {len(parameters)} tensors")
    return seconds


def _measured(reader: str, path: Path, gib: float, state: str) -> float:
    command = (sys.executable, __file__, str(path), f"--gib={gib}", f"--once={reader}:{state}")
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(said.stdout.splitlines()[-1]))


def main(words: Iterable[str]) -> None:
    """Measure all readers in turn; print the median of each and its ratio to safetensors'."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gib", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", default="")
    told = parser.parse_args(list(words))
    if told.once:
        reader, state = told.once.split(":")
        print(json.dumps(_once(reader, told.folder, told.gib, state)))  # noqa: T201
        return
    from safetensors.torch import save_file  # noqa: PLC0415

    path = told.folder / "weights.safetensors"
    torch.manual_seed(SEED)
    order = random.Random(SEED)  # noqa: S311 -- no secret
    shapes = _shapes(told.gib)
    save_file({name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}, path)
    try:
        for state in ("disk", "page cache"):
            seconds: dict[str, list[float]] = {reader: [] for reader in _BY_NAME}
            for _ in range(told.rounds):
                for reader in order.sample(list(_BY_NAME), len(_BY_NAME)):
                    seconds[reader].append(_measured(reader, path, told.gib, state))
            usual_s = median(seconds["safetensors"])
            for reader, all_s in seconds.items():
                middle_s = median(all_s)
                runs = " ".join(f"{one:.2f}" for one in all_s)
                speed = told.gib * 1.073741824 / middle_s
                print(  # noqa: T201
                    f"{state:10} {reader:16} {middle_s:6.2f} s {speed:5.2f} GB/s"
                    f" {usual_s / middle_s:5.2f} times  ({runs})"
                )
    finally:
        path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
