#!/bin/bash
# systemd_host.sh FOLDER: makes a host of this one, with systemd as PID 1. It runs FOLDER/steps, whose
# words come to FOLDER/said, and ends. What is changed there is in memory, and gone with it.
#
# It has namespaces and control groups of its own, and no other network than its own two ends.
set -euo pipefail
name=slicewise-$$
join() {
    for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do
        [ -e "$tree/cgroup.procs" ] || continue
        mkdir "$tree/$name"
        for kind in cpus mems; do
            [ ! -e "$tree/cpuset.$kind" ] || cat "$tree/cpuset.$kind" >"$tree/$name/cpuset.$kind"
        done
        echo $BASHPID >"$tree/$name/cgroup.procs"
    done
}
leave() {
    find /sys/fs/cgroup/"$name" /sys/fs/cgroup/*/"$name" -depth -type d -exec rmdir {} + 2>/dev/null || true
}
files() {
    mount --make-rprivate /
    mount -t tmpfs tmpfs "$FOLDER/top"
    local upper=$FOLDER/top/upper work=$FOLDER/top/work
    mkdir "$upper" "$work" "$root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$upper,workdir=$work" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    else
        mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
        mkdir "$root/sys/fs/cgroup/systemd"
        mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
    fi
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mkdir "$root/run/packages"
    mount --bind "$FOLDER" "$root/run/packages"
}
devices() {
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
        IFS=: read -r name major minor <<<"$device"
        mknod -m 666 "$root/dev/$name" c "$major" "$minor"
    done
    mkdir "$root/dev/shm" "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    for number in 0:stdin 1:stdout 2:stderr; do
        ln -s "/proc/self/fd/${number%:*}" "$root/dev/${number#*:}"
    done
}
# Of what this machine starts, only the journal and what the steps ask for.
units() {
    hostname slicewise
    echo slicewise >"$root/etc/hostname"
    printf '127.0.0.1 localhost\n10.99.0.1 slicewise\n' >"$root/etc/hosts"
    ip link set lo up
    ip link add eth0 type veth peer name eth1
    ip address add 10.99.0.1/24 dev eth0
    ip link set eth0 up
    ip link set eth1 up
    cat >"$root/etc/systemd/system/steps.service" <<'UNIT'
[Unit]
DefaultDependencies=no
Requires=systemd-journald.service dbus.service
After=systemd-journald.service dbus.service
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
Environment=HOME=/root
ExecStart=/bin/bash /run/packages/steps
StandardOutput=append:/run/packages/said
StandardError=inherit
UNIT
}
if [ "${2-}" = inside ]; then
    FOLDER=$1 root=$1/top/root
    files
    devices
    units
    cd "$root"
    mkdir -p .before
    pivot_root . .before
    umount --lazy /.before
    path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    exec env -i container=slicewise PATH=$path TERM=dumb LANG=C.UTF-8 \
        /lib/systemd/systemd --unit=steps.service --log-target=journal
fi
mkdir "$1/top"
trap leave EXIT
(
    join
    exec unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child bash "$0" "$1" inside
)
