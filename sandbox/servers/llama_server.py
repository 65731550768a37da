"""``llama-server`` of the sandbox: llama.cpp's own server, out of the Python package xllamacpp.

It takes those of llama-server's options that a service's batch script gives, and from variables the
size of the context (``LLAMA_ARG_CTX_SIZE``) and whether it makes embeddings
(``LLAMA_ARG_EMBEDDINGS``, ``LLAMA_ARG_POOLING``: with ``rank`` it reranks), and does the same. It
is copied to where jobs can read it, and runs with nothing but that package.
"""

import argparse
import os
import signal
import sys

import xllamacpp

_ENDS = (signal.SIGINT, signal.SIGTERM)


def main(words: list[str]) -> None:
    """Serve until SIGINT or SIGTERM, which cut off what is being answered.

    One that is blocked when this starts never comes, as in llama-server: not waited for either,
    since waiting would take it all the same.
    """
    told = _parser().parse_args(words)
    params = xllamacpp.CommonParams()
    params.model.path = told.model
    params.model_alias, params.model_tags = {told.alias}, {told.tags}
    params.hostnames = [told.host]
    params.n_parallel = told.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = told.threads
    params.endpoint_metrics, params.ui = told.metrics, told.webui
    params.n_ctx = int(os.environ.get("LLAMA_ARG_CTX_SIZE", "0"))
    params.embedding = os.environ.get("LLAMA_ARG_EMBEDDINGS", "0") == "1"
    if pooling := os.environ.get("LLAMA_ARG_POOLING"):
        kinds = xllamacpp.llama_pooling_type
        params.pooling_type = getattr(kinds, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    # Its threads inherit that: its own handlers would end it in the middle of Python.
    never = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        serving = xllamacpp.Server(params)
    except RuntimeError as error:
        sys.exit(f"E {error}")
    signal.sigwait(set(_ENDS) - never)
    sys.stdout.write(f"ending {serving.listening_address}\n")
    sys.stdout.flush()
    # Its end would wait until all clients have left.
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for text in ("--model", "--alias", "--tags", "--host"):
        parser.add_argument(text, required=True)
    for number in ("--parallel", "--threads"):
        parser.add_argument(number, type=int, required=True)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--no-webui", action="store_false", dest="webui")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
