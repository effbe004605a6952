#!/bin/sh
# `make compose-check`: prove compose.yaml on the Docker engine of this machine, from nothing to nothing.
#
# Builds the images (BUILD=no takes those that are there), starts every profile as a project of its own,
# waits until all is healthy, until the incident was played without a failed request, looks at the page, at
# the proxies and at Prometheus, kills an engine, and takes everything down again.
#
#   COMPOSE   the command, `docker compose` where nothing is said
#   BUILD     yes or no
#   KEEP      yes leaves everything running after a failure, for a look
#
# Exit code 0: all of it was seen. 1: a sentence says what was not.
set -eu
cd "$(dirname "$0")/../.."
compose=${COMPOSE:-docker compose}
export COMPOSE_PROJECT_NAME=gpu-xds-check COMPOSE_PROFILES=demo,observability DEMO_PAUSE_S=600
admin=http://127.0.0.1:18001

fail() {
    echo "compose-check: $1" >&2
    $compose ps >&2 || true
    [ "${KEEP:-no}" = yes ] || $compose down --volumes >/dev/null 2>&1 || true
    exit 1
}

# until SECONDS WHAT COMMAND...: run it every second until it succeeds.
until_() {
    left=$1 what=$2
    shift 2
    while ! "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || fail "not in time: $what"
        sleep 1
    done
    echo "seen: $what"
}

get() { curl -fsS --max-time 5 "$1"; }
played() { $compose logs --no-color load | grep -q "Gentle load; the next performance"; }
unfailed() { $compose logs --no-color load | grep -q "No client saw a failed request."; }
answered() {
    curl -fsS --max-time 10 -H 'content-type: application/json' \
        -d '{"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}' \
        "http://127.0.0.1:$1/v1/chat/completions" | grep -q choices
}
in_sync() {
    get $admin/debug/syncz | python3 -c '
import json, sys
proxies = json.load(sys.stdin)
states = [each["state"] for proxy in proxies for each in proxy["types"]]
sys.exit(0 if len(proxies) == 2 and states and set(states) == {"synced"} else 1)'
}
scraped() {
    get http://127.0.0.1:9090/api/v1/targets | python3 -c '
import json, sys
targets = json.load(sys.stdin)["data"]["activeTargets"]
down = [each for each in targets if each["health"] != "up"]
sys.exit(0 if len(targets) == 6 and not down else 1)'
}
rules_are_good() {
    get http://127.0.0.1:9090/api/v1/rules | python3 -c '
import json, sys
groups = json.load(sys.stdin)["data"]["groups"]
bad = [rule for group in groups for rule in group["rules"] if rule["health"] != "ok"]
sys.exit(0 if groups and not bad else 1)'
}
has_seen_the_death() { get "$admin/api/events?limit=1000" | grep -q '"down"'; }
is_down() { get "$admin/debug/explain?subject=a100-0" | grep -q '"state": "down"'; }
is_back() { get "$admin/debug/explain?subject=a100-0" | grep -q '"state": "healthy"'; }

if [ -n "$($compose ps -q)" ]; then
    # Somebody else's, perhaps: it is not taken down.
    echo "compose-check: the project $COMPOSE_PROJECT_NAME is running already" >&2
    exit 1
fi
[ "${BUILD:-yes}" = no ] || $compose build
began=$(date +%s)
$compose up -d || fail "it did not start"
echo "seen: up and healthy in $(($(date +%s) - began)) s"
curl -fsS -H 'accept: text/html' $admin/ | grep -i '<html' >/dev/null || fail "the control plane has no page"
for port in 10000 10001; do until_ 20 "an answer through the proxy on port $port" answered $port; done
until_ 30 "both proxies in sync" in_sync
until_ 60 "six targets, all scraped by Prometheus" scraped
until_ 30 "every alert rule evaluated without an error" rules_are_good
until_ 60 "Grafana's health" get http://127.0.0.1:3000/api/health
until_ 240 "the incident, played to its end" played
has_seen_the_death || fail "the history does not tell of the death of a100-1"
echo "seen: the death of a100-1 in what the page shows"
unfailed || fail "clients saw failed requests, or something never happened: $compose logs load"
echo "seen: no client saw a failed request"
$compose kill -s SIGKILL a100-0 >/dev/null 2>&1 || fail "a100-0 cannot be killed"
until_ 20 "a killed engine is down" is_down
for port in 10000 10001; do until_ 5 "an answer through the proxy on port $port without it" answered $port; done
$compose start a100-0 >/dev/null 2>&1 || fail "a100-0 did not start again"
until_ 60 "it is healthy again" is_back
$compose down --volumes >/dev/null 2>&1 || fail "it did not go down"
[ -z "$($compose ps -q)" ] || fail "containers are left"
echo "compose-check: everything was seen, and everything is down again"
