#!/bin/sh
# Make sure that there is a Chromium for the tests of the live page.
#
# What is on the PATH is used; root on Debian or Ubuntu gets the distribution's package.
# Exit code 1 with a sentence: neither is possible here.
set -eu
for name in "${CHROMIUM:-chromium}" chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then
        exit 0
    fi
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "no Chromium: install it (Debian: apt-get install chromium), or set CHROMIUM to a binary" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get -qq update && apt-get -qq install --yes --no-install-recommends chromium fonts-dejavu-core; } >&2; then
    echo "no Chromium: its package cannot be installed; set CHROMIUM to a binary to have one" >&2
    exit 1
fi
