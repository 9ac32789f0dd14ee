#!/bin/sh
# Make sure that there is a Chromium for make browser: the system's, else the Debian package (as root).
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "chromium: found none, expected it on the PATH; install it (Debian: apt install chromium fonts-noto-cjk)" >&2
    exit 2
fi
echo "chromium: installing the packages chromium and fonts-noto-cjk ..." >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium fonts-noto-cjk >/dev/null
