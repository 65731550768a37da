"""Says of a directory in Triton's model repository what Triton needs for it, and why it can't run.

The rules are those of Triton's documents on repository and configuration, tried on Triton 2.51.
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from slicewise.launcher.rules.engines.model_files import ModelFiles, ModelNeeds

CONFIG = "config.pbtxt"
_ENSEMBLE = "ensemble"
_FILES: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("model.onnx",),
    "tensorrt": ("model.plan",),
    "pytorch": ("model.pt", "model.pt2", "model.py"),
    "python": ("model.py",),
    "openvino": ("model.xml",),
    "vllm": ("model.json",),
    "dali": ("model.dali", "dali.py"),
}
"""By backend, the files of which a version needs one, unless its configuration names another."""
_PLATFORMS = {
    "onnxruntime_onnx": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "torch_aoti": "pytorch",
}
_BACKENDS = frozenset({*_FILES, "tensorflow", "tensorrtllm", "fil", "identity", "repeat", "square"})
"""Backends that NVIDIA publishes; a site may have others."""
_BY_FILE = {
    "model.onnx": "onnxruntime",
    "model.plan": "tensorrt",
    "model.pt": "pytorch",
    "model.py": "python",
    "model.xml": "openvino",
    "model.savedmodel": "tensorflow",
    "model.graphdef": "tensorflow",
}
"""By the file of a version, the backend that Triton takes if the configuration names none."""
_LIKENESS = 0.7
"""Likeness from which an unknown name counts as a known one that was mistyped."""
_LEAST_PART = 4
"""Letters of a part of a known name from which it counts as that: onnx, torch."""


def model_needs(files: ModelFiles, models: Collection[str], gpus: int) -> ModelNeeds:
    """Return what a model needs. ``models`` are all of its repository, ``gpus`` a replica has."""
    if files.trouble:
        return ModelNeeds(files.name, problems=(f"{CONFIG}: {files.trouble}",))
    if files.config is None and not files.versions:
        return ModelNeeds(files.name, problems=(f"no model: neither {CONFIG} nor a version 1",))
    config = files.config or {}
    served, why_none = _served(files, config)
    backend, why_no_backend = _backend(files, config, served)
    needed, why_no_file = _needed_files(files, config, backend, served)
    groups = config.get("instance_group", ())
    parts = _parts(config)
    problems = (
        *_name_problem(files, config),
        *why_none,
        *why_no_backend,
        *why_no_file,
        *_gpu_problems(groups, gpus),
        *(
            f"ensemble_scheduling: there is no model {part!r}"
            for part in parts
            if part not in models
        ),
    )
    return ModelNeeds(
        files.name,
        backend,
        tuple(dict.fromkeys(group.get("kind", "KIND_AUTO") for group in groups)),
        sum(int(group.get("count", 1)) for group in groups) or 1,
        tuple(map(int, served)),
        needed,
        _tensors(config.get("input", ())),
        _tensors(config.get("output", ())),
        "sequence_batching" in config,
        bool(config.get("model_transaction_policy", {}).get("decoupled")),
        parts,
        problems,
        _notes(backend),
        _batch(config),
    )


def _batch(config: Mapping[str, Any]) -> int:
    """Return how many requests Triton puts into one batch of an instance."""
    return max(1, int(config.get("max_batch_size", 0))) if "dynamic_batching" in config else 1


def _name_problem(files: ModelFiles, config: Mapping[str, Any]) -> Iterator[str]:
    name = config.get("name") or files.name
    if name != files.name:
        yield f"name: {name!r} in {CONFIG}, but its directory is {files.name!r}: make them the same"


def _served(files: ModelFiles, config: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the versions that Triton serves, the oldest first, and why there is none."""
    usable = sorted((version for version in files.versions if not version.startswith("0")), key=int)
    if not usable and files.versions:
        return (), (f"version directory {min(files.versions)}: begins with 0, so Triton skips it",)
    if not usable:
        return (), ("no version directory: put the model's files into a directory 1",)
    policy = config.get("version_policy", {})
    if "all" in policy:
        return usable, ()
    if "specific" in policy:
        asked = [str(version) for version in policy["specific"].get("versions", ())]
        served_versions = [version for version in usable if version in asked]
        present = ", ".join(usable)
        why = f"version_policy: none of its versions {', '.join(asked)} is there, but {present}"
        return served_versions, () if served_versions else (why,)
    return usable[-int(policy.get("latest", {}).get("num_versions", 1)) :], ()


def _backend(
    files: ModelFiles, config: Mapping[str, Any], served: Sequence[str]
) -> tuple[str, Sequence[str]]:
    """Return the model's backend ("" if not known), and why there can't be any."""
    platform, backend = config.get("platform", ""), config.get("backend", "")
    if platform == _ENSEMBLE or "ensemble_scheduling" in config:
        return _ENSEMBLE, ()
    backend = backend or _PLATFORMS.get(platform, "")
    if platform and not backend:
        return "", (f"platform: Triton has no {platform!r}{_near(platform, _PLATFORMS)}",)
    if backend:
        own = f"libtriton_{backend}.so"
        entries_there = files.entries.union(*(files.versions[version] for version in served))
        near = "" if backend in _BACKENDS or own in entries_there else _near(backend, _BACKENDS)
        return backend, (f"backend: Triton has no {backend!r}{near}",) if near else ()
    named = config.get("default_model_filename", "")
    for version in served:
        for entry in (
            named,
            *(entry.removesuffix("/") for entry in sorted(files.versions[version])),
        ):
            if entry in _BY_FILE:
                return _BY_FILE[entry], ()
    where = f"{CONFIG} names none" if files.config is not None else f"there is no {CONFIG}"
    return "", (f"backend: {where}, and the files of the version tell none",) if served else ()


def _near(name: str, names: Collection[str]) -> str:
    near = get_close_matches(name, names, n=1, cutoff=_LIKENESS)
    if not near and len(name) >= _LEAST_PART:
        near = [one for one in sorted(names) if name in one]
    return f" (did you mean {near[0]}?)" if near else ""


def _needed_files(
    files: ModelFiles, config: Mapping[str, Any], backend: str, served: Sequence[str]
) -> tuple[tuple[str, ...], Sequence[str]]:
    """Return the file of each served version, and which are missing."""
    if config.get("cc_model_filenames"):
        return (), ()
    named = config.get("default_model_filename")
    choice = (named,) if named else _FILES.get(backend, ())
    chosen: list[str] = []
    missing: list[str] = []
    for version in served if choice and backend != _ENSEMBLE else ():
        present = {entry.removesuffix("/") for entry in files.versions[version]}
        fits = [file for file in choice if file in present]
        # Triton's Python backend also takes the file of all versions.
        shared = [file for file in choice if backend == "python" and file in files.entries]
        if fits:
            chosen.append(f"{version}/{fits[0]}")
        elif shared:
            chosen.append(shared[0])
        else:
            missing.append(f"version {version}: no {' or '.join(choice)} in {files.name}/{version}")
    return tuple(dict.fromkeys(chosen)), missing


def _gpu_problems(groups: Sequence[Mapping[str, Any]], gpus: int) -> Iterator[str]:
    for group in groups:
        if beyond := [count for count in group.get("gpus", ()) if count >= gpus]:
            yield (
                f"instance_group: gpus {beyond}, but a replica sees {gpus or 'none'}, "
                "numbered from 0"
            )
        elif group.get("kind") == "KIND_GPU" and not gpus:
            yield "instance_group: KIND_GPU, but a replica has no GPU"


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(
        f"{tensor.get('name', '')} {tensor.get('data_type', '').removeprefix('TYPE_')}"
        f"[{','.join(map(str, tensor.get('dims', ())))}]"
        for tensor in tensors
    )


def _parts(config: Mapping[str, Any]) -> tuple[str, ...]:
    steps = config.get("ensemble_scheduling", {}).get("step", ())
    return tuple(dict.fromkeys(step.get("model_name", "") for step in steps))


def _notes(backend: str) -> tuple[str, ...]:
    if not backend or backend == _ENSEMBLE or backend in _BACKENDS:
        return ()
    return (f"backend {backend} does not come with Triton: the nodes or the image must have it",)
