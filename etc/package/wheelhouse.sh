#!/bin/sh
# Gathers build/dist/wheelhouse: all wheels that an installation needs, for this system and PYTHON, and
# the lines that install them without a network. Run by `make wheelhouse`, after `make wheel`.
set -eu
pip=$1 dist=$2
house=$dist/wheelhouse
rm -rf "$house"
mkdir -p "$house"
"$pip" download --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
    --requirement "$dist"/requirements.lock --dest "$house"
cp "$dist"/slicewise-*.whl "$dist"/requirements.lock "$house"
cd "$house"
wheel=$(echo slicewise-*.whl)
version=${wheel#slicewise-}
printf 'slicewise==%s --hash=sha256:%s\n' \
    "${version%%-*}" "$(sha256sum "$wheel" | cut -d ' ' -f 1)" > slicewise.lock
cat > INSTALL <<'TEXT'
On a host without a network, with the Python whose version the wheels here name (cp311: 3.11):

    python3 -m venv /opt/slicewise
    /opt/slicewise/bin/pip install --no-index --find-links . --require-hashes -r requirements.lock -r slicewise.lock

pip checks each file by its hash. Whether the folder is whole: sha256sum -c SHA256SUMS
TEXT
sha256sum -- * > ../SHA256SUMS
mv ../SHA256SUMS SHA256SUMS
