#!/bin/sh
# Put `prometheus` and `promtool` below a folder, for the tests of rules and metrics.
#
# Needs no root and changes nothing outside the folder: what the PATH has is linked, otherwise the
# package of Debian or Ubuntu is fetched with lists of its own and unpacked, never installed.
# Exit code 1 with a sentence: neither is possible here.
set -eu
dir=${1:?"folder to put Prometheus into"}
bin=$dir/usr/bin
if [ -x "$bin/promtool" ] && [ -x "$bin/prometheus" ]; then
    exit 0
fi
if promtool=$(command -v promtool) && prometheus=$(command -v prometheus); then
    mkdir -p "$bin"
    ln -sf "$promtool" "$prometheus" "$bin/"
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "no Prometheus: neither promtool and prometheus on the PATH nor apt-get to fetch them" >&2
    exit 1
fi
mkdir -p "$(dirname "$dir")"
work=$(mktemp -d "$(dirname "$dir")/prometheus.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
root=$(cd "$work" && pwd)
apt() {
    apt-get -qq -o "Dir::State=$root/state" -o Dir::State::status=/var/lib/dpkg/status \
        -o "Dir::Cache=$root/cache" -o "APT::Sandbox::User=$(id -un)" "$@" >&2
}
if ! apt update || ! (cd "$work" && apt download prometheus); then
    echo "no Prometheus: its package cannot be fetched; install promtool and prometheus to have them on the PATH" >&2
    exit 1
fi
dpkg-deb -x "$work"/prometheus_*.deb "$work/unpacked"
rm -rf "$dir"
mv "$work/unpacked" "$dir"
