"""The wheel, installed as on a site: in an environment of its own, without the clone."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel."""

    prefix: Path

    @property
    def site_packages(self) -> Path:
        return next(self.prefix.glob("lib/python3*/site-packages"))

    @property
    def share(self) -> Path:
        return self.prefix / "share" / "slicewise"

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs in its folder, as a user whose variables name no clone."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return subprocess.run(
            [self.prefix / "bin" / words[0], *words[1:]],
            env=kept | environment,
            cwd=self.prefix,
            capture_output=True,
            text=True,
            check=False,
        )


def built(folder: Path) -> Path:
    """Return the wheel, as ``make wheel`` makes it."""
    tools = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*tools, *options], check=True, capture_output=True)
    return next(folder.glob("slicewise-*.whl"))


def installed(wheel: Path, prefix: Path, pins: Mapping[str, str]) -> Installed:
    """Install it into a new environment, beside the packages in ``pins`` and no others.

    These are linked from the environment that runs the tests.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    made = Installed(prefix)
    for name in pins:
        _link(name, made.site_packages)
    pip = [sys.executable, "-m", "pip", "--python", str(prefix / "bin" / "python"), "install"]
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, *options, str(wheel)], check=True, capture_output=True)
    return made


def _link(name: str, target: Path) -> None:
    """Link what a distribution put into site-packages; one for other systems is not there."""
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return
    for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
        source = Path(str(metadata.distribution(name).locate_file(top)))
        if source.exists() and not (target / top).exists():
            (target / top).symlink_to(source)
