#!/bin/sh
# Makes gateway.directory. Starts nothing, and restarts nothing (docs/how-to/backup.md).
set -e
if command -v systemd-tmpfiles >/dev/null; then
    systemd-tmpfiles --create slicewise-gateway.conf
else
    install -d -m 711 -o slicewise -g slicewise /etc/haproxy/slicewise
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if systemctl --quiet is-active slicewise-launcher.service; then
        echo "slicewise-launcher runs on with the former version. Once the daemon is restarted:"
        echo "slicewise gateway render, systemctl reload haproxy, systemctl restart slicewise-launcher."
    fi
fi
