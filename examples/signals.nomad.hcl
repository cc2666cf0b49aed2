# Signals and restarts, with the stock nomad command line as the client.
#
#   taskapi run --detach examples/signals.nomad.hcl      prints the allocation's ID
#
# and, as the same user, with that as $ALLOC and with the directory that 'taskapi status $ALLOC' shows as $DIR:
#
#   export NOMAD_ADDR=unix://$DIR/operator.sock NOMAD_TOKEN=$(cat $DIR/operator.token)
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
