#!/bin/sh
# On the first installation /opt/slicewise belongs to no package: what lies there was made by hand.
set -e
case "$1" in
install | 1)
    if [ -e /opt/slicewise/pyvenv.cfg ]; then
        echo "/opt/slicewise was made by hand: move it away, then install again. /etc/slicewise stays as it is." >&2
        exit 1
    fi
    ;;
esac
