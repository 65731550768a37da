#!/bin/bash
# in_tree.sh TREE COMMAND...: runs a command in this folder, in a Debian tree of another release.
#
# By pivot_root in a mount namespace, as in a chroot the kernel lets no user make a namespace, which
# each replica needs. The tree sees the machine's processes, devices, /tmp and this folder.
set -euo pipefail
export TREE HERE
TREE=$(realpath "$1") HERE=$(pwd -P)
shift
exec unshare --mount --propagation private bash -euo pipefail -c '
mount --bind "$TREE" "$TREE"
mkdir -p "$TREE$HERE" "$TREE/.before"
[ -e "$TREE/etc/hosts" ] || echo "127.0.0.1 localhost" >"$TREE/etc/hosts"
for each in /proc /dev /sys /tmp "$HERE"; do mount --rbind "$each" "$TREE$each"; done
cd "$TREE"
pivot_root . .before
cd /
umount --lazy /.before
cd "$HERE"
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec env -i HOME=/root PATH="$path" TERM=dumb LANG=C.UTF-8 \
    SLICEWISE_NIGHTLY="${SLICEWISE_NIGHTLY:-}" SLICEWISE_TEST_BUDGETS="${SLICEWISE_TEST_BUDGETS:-}" "$@"
' "$0" "$@"
