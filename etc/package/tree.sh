#!/bin/sh
# Makes build/package/root, the files of the DEB and RPM packages: a virtual environment that works in
# /opt/slicewise, man pages, completion. Run by `make deb` and `make rpm`, after `make wheelhouse`.
set -eu
case $(readlink -f "$(command -v "$1")") in
/usr/bin/*) ;;
*)
    echo "$1 is not the distribution's: make deb PYTHON=/usr/bin/python3.11, with that of the hosts." >&2
    exit 1
    ;;
esac
python=$1 pip=$2 house=$3 root=$4
venv=$root/opt/slicewise
rm -rf "$root"
mkdir -p "$venv"
root=$(realpath "$root") venv=$(realpath "$venv")
"$python" -m venv --without-pip "$venv"
"$pip" --python "$venv/bin/python" install --quiet --disable-pip-version-check --no-compile --no-index \
    --find-links "$house" --require-hashes --requirement "$house/requirements.lock" --requirement "$house/slicewise.lock"

# Nothing names the folder in which it was built.
rm -f "$venv"/bin/activate* "$venv"/bin/Activate.ps1
find "$venv/lib" -name direct_url.json -delete
find "$venv/bin" -type f -exec sed -i "s|$root/|/|g" {} +
sed -i '/^command = /d' "$venv/pyvenv.cfg"
# Other programs' commands are not ours to offer.
find "$venv/bin" -type f ! -name slicewise -delete
# Byte code is valid whatever time a package manager gives a file. Users may not write there.
"$python" -m compileall -q --invalidation-mode unchecked-hash -s "$root" -p / "$venv/lib"
chmod -R go=rX,u+w "$root"

mkdir -p "$root/completion"
for shell in bash zsh fish; do
    env -i PATH=/usr/bin:/bin "_SLICEWISE_COMPLETE=source_$shell" "$venv/bin/python" -P -m slicewise.launcher.main \
        > "$root/completion/$shell"
    [ -s "$root/completion/$shell" ]
done
if grep -rIl "$root" "$root"; then
    echo "These name the folder in which they were built." >&2
    exit 1
fi
