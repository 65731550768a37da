"""NVIDIA's Triton Inference Server, with KServe's protocol by HTTP and gRPC."""

import re
from calendar import timegm
from collections.abc import Collection, Generator, Mapping, Sequence
from types import MappingProxyType

from slicewise.cluster.language.service import ServiceSpec
from slicewise.launcher.rules.engines import triton_statistics
from slicewise.launcher.rules.engines.engine import (
    Answer,
    Call,
    MediaFetch,
    Parallelism,
    Probe,
    Request,
)
from slicewise.launcher.rules.engines.model_files import ModelFiles, ModelNeeds
from slicewise.launcher.rules.engines.statistics import Answered
from slicewise.launcher.rules.engines.triton_inference import (
    ModelConfig,
    ModelMetadata,
    RefusedInference,
    ServerMetadata,
    infer_request,
    model_path,
    smallest_inference,
)
from slicewise.launcher.rules.engines.triton_model import (
    TritonModel,
    control,
    index_request,
    load,
    load_call,
    models_in_state,
)
from slicewise.launcher.rules.engines.triton_repository import CONFIG, model_needs
from slicewise.launcher.rules.engines.triton_sample import parse_sample

_OPTIONS = (
    '--id="$id"',
    '--model-repository="$models"',
    '--http-address="unix:$private/http" --http-port=1',
    # Triton appends the port to gRPC's address only.
    '--grpc-address="unix:$private/grpc" --grpc-port=2',
    '--metrics-address="unix:$private/metrics" --metrics-port=3',
    '--backend-config=python,shm-region-prefix-name="slicewise_${SLURM_JOB_ID}_"',
)
_MODEL = "/v2/models/[A-Za-z0-9_][A-Za-z0-9_.-]*"
_CALL = r"/inference\.GRPCInferenceService/"
_LOG_TIME = re.compile(r"[A-Z]([0-9]{2})([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})\.")
_DAY_S = 86_400
_YEAR_S = 365.2425 * _DAY_S
_LOG_MARK = re.compile(r"^[EIW][0-9]{4} [^]]*\] ")


class Triton:
    """Triton as an engine; ``Engine`` says what each part is."""

    title = "Triton"

    command = "/opt/tritonserver/bin/tritonserver"
    image_command = "tritonserver"
    private_shm = True

    # A model's instances of KIND_GPU are spread over the GPUs that it sees.
    parallelism = Parallelism(gpus=True)
    sockets = ("http", "grpc:2")
    loopback_port = 0
    environment = MappingProxyType[str, str]({})
    options_file = ""
    starts_in_models = False
    drain_signal = "INT"
    finishes_requests = True
    # Of the Python backend, which does not look at TMPDIR.
    temporary = f"python_env_{'[A-Za-z0-9]' * 6}"
    library = "libtriton_python.so"

    media_fetch = MediaFetch.NEVER

    model_layout = "a directory with config.pbtxt or a numbered version"
    model_config = CONFIG
    model_indexes = ()
    chooses_file = False
    loads_all = True
    # It goes on without what a GPU would give; the rest follows from a model that did not load.
    log_harmless = re.compile(
        r"\"?(?:Unable to allocate pinned system memory|CUDA memory pool disabled"
        r"|Unable to (?:get|query) (?:power|device|\w+ (?:usage|limit))|Cannot get CUDA device"
        r"|CacheManager Init Failed|DCGM unable|failed to enable peer access"
        r"|No GPU metrics|Error when getting|TensorFlow|warning: )"
        r"|error: creating server: Internal - failed to load all models"
    )
    # Tables, and information.
    log_notice = re.compile(r"[+|]|I[0-9]")

    group = "triton"
    api = "/v2"
    health_path = "/v2/health/ready"
    # No client loads or unloads models, maps shared memory or changes logging and tracing.
    http_paths = (
        "/v2/?",
        f"{_MODEL}(/versions/[0-9]+)?(/(ready|config|infer|generate|generate_stream))?",
    )
    grpc_paths = (
        f"{_CALL}ServerMetadata",
        f"{_CALL}Model(Ready|Metadata|Config|Infer|StreamInfer)",
    )
    health_paths = (
        "/v2/health/(live|ready)",
        "/health",
        f"{_CALL}Server(Live|Ready)",
        r"/grpc\.health\.v1\.Health/Check",
    )
    running_sums = ""
    stream_paths = (
        f"{_MODEL}(/versions/[0-9]+)?/generate_stream",
        f"{_CALL}ModelStreamInfer",
    )
    statistics_paths = (
        triton_statistics.ALL,
        f"{_MODEL}(/versions/[0-9]+)?/stats",
        f"{_CALL}ModelStatistics",
    )
    served = (
        "inference, readiness and metadata"
        " (/v2, /v2/health/..., /v2/models/..., and the same by gRPC)"
    )
    dropped_headers = ()
    keeps_connections = True

    statistics_path = triton_statistics.ALL
    statistics_kind = triton_statistics.TritonCounts()

    identity_path = "/v2"
    version_path = "/v2"

    def options(self, spec: ServiceSpec, /, *, is_measured: bool) -> tuple[str, ...]:
        """Return Triton's options; it serves all models of the repository unless it is told to.

        It is told where it is measured, and in a pool. There a model that is being loaded, or could
        not be, does not make all of the server unready, as it would without the last option.
        """
        explicit = ("--model-control-mode=explicit",) if is_measured or spec.pool else ()
        own = (f"--load-model={spec.model} --strict-readiness=false",)
        pooled = own if spec.pool and not is_measured else ()
        return (*_OPTIONS, *explicit, *pooled, '--exit-timeout-secs="$exit_timeout_s"')

    def closes_network(self, _spec: ServiceSpec, /) -> bool:
        """Return no."""
        return False

    def is_model(self, entries: frozenset[str]) -> bool:
        """Whether it has a config.pbtxt or a numbered version (user guide, "Model Repository")."""
        versions = (entry.removesuffix("/") for entry in entries if entry.endswith("/"))
        return CONFIG in entries or any(map(str.isdecimal, versions))

    def model_needs(self, files: ModelFiles, models: Collection[str], gpus: int) -> ModelNeeds:
        """Read Triton's configuration and look at the files that its backend opens."""
        return model_needs(files, models, gpus)

    def log_time_s(self, line: str, now_s: float, /) -> float | None:
        """Read such as ``E1122 07:10:02.000001 17``: Triton's clock is UTC and names no year."""
        if (match := _LOG_TIME.match(line)) is None:
            return None
        year = 1970 + int(now_s / _YEAR_S)
        try:
            times_s = [
                timegm((candidate_year, *map(int, match.groups())))
                for candidate_year in (year + 1, year, year - 1)
            ]
        except ValueError:
            return None
        return next((at_s for at_s in times_s if at_s <= now_s + _DAY_S), None)

    def log_message(self, line: str) -> str:
        """Remove such as ``E1122 07:10:02.000001 17 model.cc:1] ``."""
        return _LOG_MARK.sub("", line)

    def identified(self, body: bytes, identity: str) -> Answer:
        """Compare Triton's ``--id``."""
        is_ours = ServerMetadata.parse(body).name == identity
        return Answer(Probe.OURS if is_ours else Probe.STRANGER)

    def version(self, body: bytes) -> str:
        """Read what it says beside its name."""
        return ServerMetadata.parse(body).version

    def ready_paths(self, model: str) -> tuple[str, ...]:
        """Return the paths for the server and the model."""
        return self.health_path, f"{model_path(model)}/ready"

    def model_paths(self, model: str) -> tuple[str, ...]:
        """Return the paths of the model's metadata and configuration."""
        return model_path(model), f"{model_path(model)}/config"

    def smallest_request(
        self, model: str, bodies: Sequence[bytes], sequence_id: int
    ) -> Request | None:
        """Build an inference of zeros; a decoupled model has none, as it only streams."""
        metadata, config = bodies
        inference = smallest_inference(
            ModelMetadata.parse(metadata), ModelConfig.parse(config), sequence_id
        )
        return None if inference is None else infer_request(model, inference)

    def failure(self, body: bytes) -> str:
        """Return Triton's own message, else all that was answered."""
        try:
            return RefusedInference.parse(body).error
        except (ValueError, TypeError):
            return body.decode(errors="replace")

    counted = staticmethod(triton_statistics.counted)
    statistics_by_http = staticmethod(triton_statistics.by_http)
    statistics_by_grpc = staticmethod(triton_statistics.by_grpc)

    has_server_each = False
    has_host_weights = False
    answered_path = triton_statistics.ALL

    def answered(self, body: bytes) -> Mapping[str, Answered]:
        """Add up the inferences of a model's versions."""
        return triton_statistics.answered(self.counted(body))

    def models_request(self) -> Request:
        """Build the question for the repository's index."""
        return index_request()

    def ready_models(self, body: bytes) -> frozenset[str]:
        """Read the models with a version that is ready."""
        return models_in_state(body, "READY")

    def leaving_models(self, body: bytes) -> frozenset[str]:
        """Read the models with a version that waits for its last requests, or frees its memory."""
        return models_in_state(body, "UNLOADING")

    def loading_models(self, body: bytes) -> frozenset[str]:
        """Read the models with a version that is not ready yet."""
        return models_in_state(body, "LOADING")

    def load_model(self, model: str, _service: str) -> Call:
        """Build a load by the repository extension: requests name the model itself.

        By gRPC: by HTTP it has one of the few threads that serve connections, and all that this one
        has served before wait (triton-inference-server/server#8958).
        """
        return load_call(model)

    def unload_model(self, model: str) -> Request:
        """Build an unload by the repository extension."""
        return control(model, "unload", {})

    def check_data(self, data: str) -> None:
        """Check an inference in KServe's JSON."""
        parse_sample(data)

    def load(
        self, model: str, processes: int | None, data: str | None
    ) -> Generator[Request, bytes, TritonModel]:
        """Load the model by Triton's repository extension."""
        return load(model, processes, None if data is None else parse_sample(data))
