# Signals and restarts, with the stock nomad command line as the client.
#
#   taskapi run -data-dir /tmp/t -alloc-id 5e0b1c1a-0000-4000-8000-000000000001 examples/signals.nomad.hcl
#
# and in another terminal, as the same user:
#
#   ALLOC=5e0b1c1a-0000-4000-8000-000000000001
#   export NOMAD_ADDR=unix:///tmp/t/allocs/$ALLOC/operator.sock
#   export NOMAD_TOKEN=$(cat /tmp/t/allocs/$ALLOC/operator.token)
#   nomad alloc signal -s SIGUSR1 $ALLOC listener        the task prints a line
#   nomad alloc restart $ALLOC listener                  SIGTERM, its last words, and a new process
#   nomad alloc status $ALLOC                            its events

job "signals" {
  type = "service"

  group "show" {
    task "listener" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "3s"

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          trap 'echo got SIGUSR1' USR1
          trap 'echo got SIGTERM, leaving; exit 0' TERM
          echo "listening as process $$"
          while :; do sleep 3600 & wait $!; kill $! 2>/dev/null; done
          EOF
        ]
      }
    }
  }
}
