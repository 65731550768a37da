"""[engines.NAME] of slicewise.toml: how the servers of inference engines are started on nodes."""

from pathlib import Path

from pydantic import Field

from slicewise.cluster.settings.section import Section


class EngineSettings(Section):
    """[engines.NAME]: how an engine's server is started on a node; docs/how-to/engines.md.

    What is unset is as the engine itself says; below the table of keys stands what that is.
    """

    command: Path | None = Field(
        None, description="The server on the nodes, for runtime bare; unset: the engine's own."
    )
    image_command: str | None = Field(
        None,
        description="The server in images, for runtime apptainer and pyxis; unset: the engine's"
        " own.",
    )
    apptainer: str = Field(
        "apptainer", description="apptainer on the nodes, for runtime apptainer."
    )
    image_copies: bool = Field(
        True,
        description="Where launcher.node_cache keeps models, keep images there, too, if they are "
        "files; false where apptainer.conf limits whose containers may run, or from which paths.",
    )
    python: str = Field(
        "python3",
        description="Python 3.8 or newer on the nodes; runs what lets only the gateway in.",
    )
    private_shm: bool | None = Field(
        None,
        description="Give each replica a /dev/shm of its own; false where each job has one anyway;"
        " unset: where the engine uses it.",
    )
    interface: str = Field(
        "",
        pattern=r"^[A-Za-z0-9_.-]{0,15}$",
        description="Network interface between the nodes of one replica, such as ib0, on which no "
        "other network sends: engines neither encrypt nor check what comes there. Unset: that of "
        "the nodes' addresses in Slurm.",
    )
