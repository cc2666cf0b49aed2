#!/bin/bash
# Makes the pictures of taskapi top in docs/screens: runs examples, lets top show them on terminals of tmux for some
# minutes, and writes what these show, as text and as pictures. `make screens` runs it, in the repository. Needs tmux,
# redis-server, nginx, aha and chromium.
#
#   docs/screens/record.sh [SECONDS]     how long top looks before its pictures are taken (120)
set -euo pipefail
seconds=${1:-120}
place=$(mktemp -d /tmp/top.XXXX) # a short path, which the pictures show
ln -s "$PWD"/bin/{taskapi,demo-server,demo-watcher} "$place"
export TASKAPI_DATA_DIR=$place/data LC_ALL=C.UTF-8
taskapi=$place/taskapi
terminal() { tmux -u -f /dev/null -S "$place/$1.sock" "${@:2}"; }
finish() {
  for socket in "$place"/*.sock; do tmux -S "$socket" kill-server || :; done
  "$taskapi" stop --all
  rm -rf "$place"
}
trap finish EXIT

"$taskapi" run -d --wait=complete examples/batch.nomad.hcl
"$taskapi" run -d --wait -var "bin=$place" examples/demo.nomad.hcl
"$taskapi" run -d examples/hello.nomad.hcl
"$taskapi" run -d --wait examples/web.nomad.hcl

# name, width, height, arguments of top, keys to press
while read -r name width height args; do
  terminal "$name" new-session -d -x "$width" -y "$height" "env -u NO_COLOR $taskapi top $args"
done <<END
top 100 21 web
top-list 100 21
list-80x24 80 24
inside-40x10 40 10 web
inside-80x24 80 24 web
inside-200x50 200 50 web
END

# Requests in waves, and some for pages that are not there.
url=http://$("$taskapi" service info -t '{{(index . 0).Address}}:{{(index . 0).Port}}' web)
end=$((SECONDS + seconds))
for ((n = 0; SECONDS < end; n++)); do
  path=$([ $((n % 200)) = 100 ] && echo missing || :)
  curl -s -o /dev/null "$url/$path" "$url?[1-$((10 + 10 * (SECONDS / 7 % 3)))]" || :
  sleep 0.05
done
terminal top send-keys Home
sleep 3

cd docs/screens
for name in top top-list; do
  {
    terminal "$name" capture-pane -p -e -N | aha -s
    echo '<style>pre { font: 14px "DejaVu Sans Mono"; margin: 12px } body { margin: 0 } .bg-cyan { color: black; background: #b6e3f4 }'
    echo '.dimgray, .bg-cyan { filter: none } .green { color: #1a7f37 } .blue { color: #0969da } .cyan { color: #1b7c83 }</style>'
  } >"$place/$name.html"
  chromium --headless --no-sandbox --hide-scrollbars --window-size=880,400 --screenshot="$name.png" \
    "file://$place/$name.html"
done
for name in list-80x24 inside-40x10 inside-80x24 inside-200x50; do
  terminal "$name" capture-pane -p >"$name.txt"
done
