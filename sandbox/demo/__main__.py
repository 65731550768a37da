"""``python -m slicewise.sandbox.demo``"""

import sys

from slicewise.cluster.language.codes import Code

_EXTRA = frozenset({"aiohttp", "matplotlib", "numpy", "openai", "tritonclient"})
"""Modules that only the extra ``sandbox`` brings."""


def main() -> None:
    """Run the demo's command.

    Its libraries take a second to import; Ctrl-C is handled during that time, too.
    """
    try:
        from slicewise.sandbox.demo.cli import app  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)  # as shells have it
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        sys.exit(
            f"The demo needs the Python package {error.name}: pip install 'slicewise[sandbox]'. "
            f"[{Code.PROGRAM}]"
        )
    app()


if __name__ == "__main__":
    main()
