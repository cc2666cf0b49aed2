#!/usr/bin/env bash
# Runs examples/demo.nomad.hcl with the programs in ./bin and shows it working, then stops it. Ends by itself, with exit code 0
# only when everything that it shows was as it should be. Needs bash and curl; leaves nothing behind.
#
#   examples/demo.sh [BIN]        BIN: the folder with taskapi, demo-server and demo-watcher; default: bin beside examples/
set -euo pipefail

if ! command -v curl >/dev/null; then
  printf '%s needs curl, which is not installed\n' "$0" >&2
  exit 2
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$(cd "${1:-$here/../bin}" && pwd)
# A short folder: the path of a Unix socket has room for 107 bytes.
data=$(mktemp -d /tmp/taskapi.XXXXXX)
alloc=$(cat /proc/sys/kernel/random/uuid)
dir=$data/allocs/$alloc
flags=()
pid=
printer=

if ! command -v curl >/dev/null; then
  printf '%s needs curl, which is not installed; install it\n' "$0" >&2
  exit 2
fi

step() { printf '\n== %s\n' "$*"; }
fail() {
  printf '\ndemo FAILED: %s\n' "$*" >&2
  exit 1
}

# within SECONDS WHAT COMMAND... waits until the command succeeds, as long as taskapi runs.
within() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || fail "taskapi ended while waiting for $what"
    ((SECONDS < deadline)) || fail "no $what in time"
    sleep 0.1
  done
}

# printed waits for the last lines of taskapi to be on the screen; they go through another process.
printed() {
  local deadline=$((SECONDS + 5))
  while [[ -n $printer ]] && kill -0 "$printer" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.1; done
}

gone() { ! kill -0 "$pid" 2>/dev/null; }

# stop ends taskapi in order and, when that takes too long, at once: a second signal skips every delay.
stop() {
  local signals=0 deadline
  while ! gone && ((signals < 2)); do
    kill -TERM "$pid" 2>/dev/null || true
    signals=$((signals + 1)) deadline=$((SECONDS + 20))
    until gone || ((SECONDS >= deadline)); do sleep 0.1; done
  done
  ((signals < 2)) && gone
}

cleanup() {
  local code=$?
  trap - EXIT
  if [[ -n $pid ]] && ! gone; then
    stop || kill -KILL "$pid" 2>/dev/null || true
  fi
  printed
  if ((code != 0)); then
    for log in "$dir"/alloc/logs/*.std*.0; do
      [[ -s $log ]] && printf -- '-- %s\n' "${log##*/}" >&2 && cat "$log" >&2
    done
  fi
  rm -rf "$data"
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# healthy reports that both checks succeed.
healthy() { [[ $(ask "/v1/client/allocation/$alloc/checks" "$token" | grep -o '"Status":"success"' | wc -l) == 2 ]]; }

# ask PATH [TOKEN] prints the answer's body, then its status on a line of its own. The token goes through a pipe: the arguments
# of a process are for all to see.
ask() {
  local args=(--silent --max-time 10 --unix-socket "$dir/operator.sock" --write-out '\n%{http_code}\n')
  if (($# > 1)); then
    curl "${args[@]}" --header @<(printf 'X-Nomad-Token: %s\n' "$2") "http://localhost$1"
  else
    curl "${args[@]}" "http://localhost$1"
  fi
}

# expect STATUS WHAT PATH [TOKEN] asks, shows the status, and fails on any other.
expect() {
  local want=$1 what=$2 answer status
  shift 2
  answer=$(ask "$@") || fail "$what: curl ended with code $?"
  status=${answer##*$'\n'}
  body=${answer%$'\n'*}
  printf '  %-42s %s\n' "$what" "$status"
  [[ $status == "$want" ]] || fail "$what: got status $status, want $want: $body"
}

programs=$bin
if ((EUID == 0)); then # each task gets a user of its own, which may not be let into the folder of this repository
  flags=(--isolate-users)
  programs=$data/bin
  chmod 711 "$data"
  mkdir -m 755 "$programs"
  install -m 755 "$bin/demo-server" "$bin/demo-watcher" "$programs"
fi

step "taskapi run ${flags[*]:+${flags[*]} }examples/demo.nomad.hcl"
mkfifo "$data/events"
sed -u 's/^/  /' "$data/events" &
printer=$!
"$bin/taskapi" run -data-dir "$data" -alloc-id "$alloc" "${flags[@]}" -var bin="$programs" "$here/demo.nomad.hcl" >"$data/events" 2>&1 &
pid=$!
watcher=$dir/alloc/logs/watcher.stdout.0
within 60 "last word of the watcher" grep -Eq '^(done|failed)' "$watcher"

step "what the watcher, a task, saw through its own socket with Nomad's Go SDK"
sed 's/^/  /' "$watcher"
grep -q '^done' "$watcher" || fail "the watcher failed"

step "what curl gets on the operator's socket"
token=$(cat "$dir/operator.token")
expect 200 "the allocation, with the operator's token" "/v1/allocation/$alloc" "$token"
[[ $body == *'"ClientStatus":"running"'* ]] || fail "the allocation does not run: $body"
within 10 "success of both checks" healthy # one may have met the server just when it was restarted, a second ago at most
expect 200 "its checks" "/v1/client/allocation/$alloc/checks" "$token"
expect 401 "the same without a token" "/v1/client/allocation/$alloc/checks"
expect 403 "the same with a token made up" "/v1/client/allocation/$alloc/checks" "eyJhbGciOiJub25lIn0.e30."

step "stopping it with SIGTERM"
stop || fail "taskapi did not stop in time"
wait "$pid" && code=0 || code=$?
((code == 0)) || fail "taskapi ended with exit code $code"
printed

step "done: the job ran, its task used the API, strangers were refused, and it stopped with exit code $code"
