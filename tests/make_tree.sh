#!/bin/bash
# make_tree.sh SUITE TREE: a Debian tree with what the sandbox runs, its Slurm among it.
#
# $PACKAGES are the packages. This machine's Python comes with them: trixie has a newer one only, for
# which Triton's numpy is not made. 1.6 GB, about five minutes.
set -euo pipefail
suite=$1 tree=$2
if [ -e "$tree" ]; then echo "$tree is there already."; exit 0; fi
mkdir -p "$(dirname "$tree")"
making=$(dirname "$tree")/.making-$(basename "$tree")
rm -rf "$making"
log=$tree.log
# Copied from here, below.
packages=$(tr ' ' '\n' <<<"$PACKAGES" | grep -v '^libpython')
echo "Debian $suite: about five minutes; $log"
{
    nice -n 19 debootstrap --variant=minbase "$suite" "$making"
    cp /etc/apt/apt.conf.d/* "$making/etc/apt/apt.conf.d/"
    cp /etc/resolv.conf "$making/etc/resolv.conf"
    printf '#!/bin/sh\nexit 101\n' >"$making/usr/sbin/policy-rc.d"
    chmod 755 "$making/usr/sbin/policy-rc.d"
    # What Python's own modules need, and what tests ask for.
    nice -n 19 chroot "$making" env DEBIAN_FRONTEND=noninteractive apt-get install -y \
        --no-install-recommends $packages git libexpat1 libffi8 libssl3t64 libsqlite3-0 lua5.1 make procps slurmrestd
    python=$(basename "$(realpath /usr/bin/python3)")
    cp -a "/usr/bin/$python" "$making/usr/bin/"
    ln -sf "$python" "$making/usr/bin/python3"
    cp -a "/usr/lib/$python" "$making/usr/lib/"
    cp -a /usr/lib/*/lib"$python".so* "$making/usr/lib/$(uname -m)-linux-gnu/"
    grep -q localhost "$making/etc/hosts" 2>/dev/null || echo "127.0.0.1 localhost" >"$making/etc/hosts"
} >"$log" 2>&1 || { tail -n 5 "$log" >&2; exit 1; }
mv "$making" "$tree"
echo "$("$(dirname "$0")/in_tree.sh" "$tree" slurmctld -V) is in $tree."
