#!/usr/bin/env bash
# Runs services-caller.nomad.hcl, then services-greeter.nomad.hcl twice beside it, and shows how the caller finds them as they come and go.
# Ends by itself, with exit code 0 only when everything that it shows was as it should be. Needs bash and curl; leaves nothing behind.
#
#   examples/services.sh [BIN]        BIN: the folder with taskapi and demo-server; default: bin beside examples/
set -euo pipefail

if ! command -v curl >/dev/null; then
  printf '%s needs curl, which is not installed\n' "$0" >&2
  exit 2
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$(cd "${1:-$here/../bin}" && pwd)
data=$(mktemp -d /tmp/taskapi.XXXXXX)
export TASKAPI_DATA_DIR=$data
taskapi=$bin/taskapi
flags=()
programs=$bin

step() { printf '\n== %s\n' "$*"; }
fail() {
  printf '\nservices FAILED: %s\n' "$*" >&2
  exit 1
}

# found WANT waits until the caller's last words are those, its greeters from Z to A.
found() {
  local deadline=$((SECONDS + 30)) heard
  until heard=$("$taskapi" logs "$caller" | sed -n 's/^caller *| //p' | tac | sed '/^greeters:/q' | LC_ALL=C sort -r) && [[ $heard == "$1" ]]; do
    ((SECONDS < deadline)) || fail "the caller has found '$heard', not '$1'"
    sleep 0.1
  done
  printf '%s\n' "$heard" | sed 's/^/  /'
}

cleanup() {
  local code=$?
  trap - EXIT
  for id in "$data"/allocs/*/; do "$taskapi" stop -now "$(basename "$id")" >/dev/null 2>&1 || true; done
  rm -rf "$data"
  exit "$code"
}
trap cleanup EXIT

if ((EUID == 0)); then # each task gets a user of its own, which may not be let into the folder of this repository
  flags=(--isolate-users)
  programs=$data/bin
  chmod 711 "$data"
  mkdir -m 755 "$programs"
  install -m 755 "$bin/demo-server" "$programs"
fi
run() { "$taskapi" run --detach "${flags[@]}" "$@"; }

step "a caller finds nobody yet"
caller=$(run "$here/services-caller.nomad.hcl")
found "greeters: 0"

step "one greeter begins"
first=$(run -var bin="$programs" -var greeting=hello "$here/services-greeter.nomad.hcl")
found $'greeters: 1\n  "hello"'

step "another one begins" # a second copy of the job, which takes an ID of its own
run --index 1 -var bin="$programs" -var greeting=ahoy "$here/services-greeter.nomad.hcl" >/dev/null
found $'greeters: 2\n  "hello"\n  "ahoy"'
"$taskapi" service list | sed 's/^/  /'
"$taskapi" service info greeter | sed 's/^/  /'

step "the first one stops"
"$taskapi" stop "$first" >/dev/null
found $'greeters: 1\n  "ahoy"'

step "done: the caller found who was there, and nobody else"
