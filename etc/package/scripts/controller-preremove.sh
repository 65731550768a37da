#!/bin/sh
# Stops what it installed when it goes, not when a newer version takes its place.
set -e
case "$1" in
remove | 0)
    if [ -d /run/systemd/system ]; then
        systemctl --no-reload disable --now slicewise-web.socket slicewise-web.service slicewise-daemon.service slicewise-rebalance.timer
    fi
    echo "Slurm's limits stay as they are. To put them back: slicewise uninstall, before its package goes."
    ;;
esac
