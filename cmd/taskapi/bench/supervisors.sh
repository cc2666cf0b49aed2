#!/bin/bash
# Measures taskapi beside other programs that run processes of one machine: pebble, process-compose, supervisord. Each
# gets three tasks that sleep, the first of which notes when it begins. Programs that are not in PATH are left out.
#
#   PATH=$PWD/bin:$PATH cmd/taskapi/bench/supervisors.sh [ROUNDS]
#
# Prints for each the median of ROUNDS (5): ms from exec to the first task's first line; KB of PSS and RSS of all its
# processes but the tasks', idle for 15 s (once); µs of CPU for each of 5,000 answers on its Unix socket (once); how many
# tasks run a second after SIGKILL to its main process, and how many processes of tasks when it has been started again.
set -euo pipefail
rounds=${1:-5}
nap=$((100000000 + $$)) # seconds that the tasks sleep: no other process of the machine sleeps as long
place=$(mktemp -d /tmp/sv.XXXXXX)
trap 'rm -rf "$place"' EXIT
cd "$place"
first="/bin/sh -c 'date +%s%N >>$place/began; exec sleep $nap'"

cat >job.nomad.hcl <<END
job "sv" {
  group "sv" {
    task "a" {
      driver = "raw_exec"
      identity { file = true }
      config {
        command = "/bin/sh"
        args    = ["-c", "date +%s%N >>$place/began; exec sleep $nap"]
      }
    }
$(for t in b c; do printf '    task "%s" {\n driver = "raw_exec"\n config {\n command = "/bin/sleep"\n args = ["'$nap'"]\n }\n }\n' $t; done)
  }
}
END
mkdir -p pebble/layers
cat >pebble/layers/001-tasks.yaml <<END
services:
$(for t in a b c; do printf '  %s: {override: replace, startup: enabled, command: ' $t; [ $t = a ] && printf '"%s"}\n' "$first" || echo "sleep $nap}"; done)
END
cat >pc.yaml <<END
processes:
  a: {command: "date +%s%N >>$place/began; exec sleep $nap"}
  b: {command: "exec sleep $nap"}
  c: {command: "exec sleep $nap"}
END
cat >supervisord.conf <<END
[supervisord]
nodaemon=true
logfile=$place/supervisord.log
pidfile=$place/supervisord.pid
[unix_http_server]
file=$place/s.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[program:a]
command=/bin/sh -c 'date +%%s%%N >>$place/began; exec sleep $nap'
[program:b]
command=sleep $nap
[program:c]
command=sleep $nap
END

begin() { # starts the supervisor $1 and sets main to its process
  case $1 in
    taskapi) set -- taskapi run --data-dir "$place/data" job.nomad.hcl ;;
    pebble) set -- env "PEBBLE=$place/pebble" "PEBBLE_SOCKET=$place/s.sock" pebble run ;;
    process-compose) set -- process-compose -f pc.yaml -t=false -U -u "$place/s.sock" up ;;
    supervisord) set -- supervisord -c supervisord.conf ;;
  esac
  "$@" >log 2>&1 &
  main=$!
}
family() { # prints the main process and the tasks' parents, such as taskapi's keeper
  { echo "$main"; for pid in $started; do awk '$1 == "PPid:" {print $2}' "/proc/$pid/status"; done; } | sort -u
}
sum() { # sums a value of smaps_rollup
  for pid in $(family); do awk -v f="$1:" '$1 == f {print $2}' "/proc/$pid/smaps_rollup"; done |
    awk '{s += $1} END {print s}'
}
ticks() { for pid in $(family); do cut -d' ' -f14,15 "/proc/$pid/stat"; done | awk '{s += $1 + $2} END {print s}'; }
tasks() { pgrep -cfx "sleep $nap|/bin/sleep $nap" || :; }
finish() { # ends the supervisor, and whatever is left of it
  kill -TERM "$main" 2>/dev/null || :
  wait "$main" 2>/dev/null || :
  for pid in $started; do kill -KILL "$pid" 2>/dev/null || :; done
}
await() { # waits until the first task has begun, and notes the processes
  until [ -s began ]; do kill -0 "$main" || { cat log; exit 1; }; sleep 0.005; done
  sleep 1
  started=$(pgrep -fx "sleep $nap|/bin/sleep $nap" | tr '\n' ' ')
}
request() { # answers of the supervisor $1 to 5,000 requests on one connection
  case $1 in
    taskapi)
      dir=$(echo data/allocs/*/a)
      set -- "$dir/secrets/api.sock" "localhost/v1/client/allocation/$(basename "$(dirname "$dir")")/checks#[1-5000]" \
        -H @header
      # a file, since every user of the machine can read a command line
      (umask 077; printf 'X-Nomad-Token: %s\n' "$(cat "$dir/secrets/nomad_token")" >header) ;;
    pebble) set -- s.sock "localhost/v1/services#[1-5000]" ;;
    process-compose) set -- s.sock "localhost/processes#[1-5000]" ;;
    supervisord) set -- s.sock "localhost/#[1-5000]" ;;
  esac
  socket=$1 url=$2
  shift 2
  curl -sf -o /dev/null -w '%{http_code}\n' --unix-socket "$socket" "$url" "$@" >codes || :
  grep -c '^200' codes || :
}

names=()
for name in taskapi pebble process-compose supervisord; do
  ! command -v "$name" >/dev/null || names+=("$name")
done
for ((i = 0; i < rounds; i++)); do # in turn, so that other load on the machine is shared
  for name in "${names[@]}"; do
    rm -rf began data s.sock
    before=$(date +%s%N)
    begin "$name"
    await
    echo $((($(cat began) - before) / 10000)) >>"times.$name"
    finish
  done
done
for name in "${names[@]}"; do
  median=$(sort -n "times.$name" | sed -n "$(((rounds + 1) / 2))p")
  rm -rf began data s.sock
  begin "$name"
  await
  sleep 15
  pss=$(sum Pss) rss=$(sum Rss)
  cpu=$(ticks) answers=$(request "$name") cpu=$(($(ticks) - cpu))
  kill -KILL "$main"
  wait "$main" 2>/dev/null || :
  sleep 1
  left=$(tasks)
  begin "$name"
  sleep 5
  again=$(tasks)
  started="$started $(pgrep -fx "sleep $nap|/bin/sleep $nap" | tr '\n' ' ')"
  finish
  awk -v n="$name" -v t="$median" -v p="$pss" -v r="$rss" -v c="$cpu" -v a="$answers" -v l="$left" -v g="$again" 'BEGIN {
    printf "%s: %.1f ms to the first task; %.1f MB PSS, %.1f MB RSS; %d answers, %.0f µs of CPU each; ", n, t / 100,
      p / 1024, r / 1024, a, a ? c * 10000 / a : 0
    printf "after SIGKILL %d of 3 tasks run; when it has started again, %d processes of tasks\n", l, g}'
done
