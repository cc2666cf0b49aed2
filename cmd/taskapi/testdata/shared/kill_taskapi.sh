# kills the taskapi of the allocation whose ID is in a file, and waits until all of its threads have let go of the state
has_state() { ls -l $p/task/*/fd 2>/dev/null | grep -q "$id/state.db"; }
id=$(cat $1)
for p in /proc/[0-9]*; do
  if has_state; then
    kill -9 ${p#/proc/}
    while has_state; do sleep 0.01; done
  fi
done
