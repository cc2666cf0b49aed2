# The quick start: one task that needs only /bin/sh, with a check and an identity.
#
#   taskapi run examples/hello.nomad.hcl      Ctrl-C stops it

job "hello" {
  group "hello" {
    service {
      name     = "hello"
      provider = "nomad"

      check {
        name     = "greets"
        type     = "script"
        task     = "greeter"
        command  = "/bin/sh"
        args     = ["-c", "cat \"$NOMAD_TASK_DIR/greeting\""]
        interval = "1s"
        timeout  = "1s"
      }
    }

    task "greeter" {
      driver = "raw_exec"

      # The token is in $NOMAD_TOKEN; the socket that takes it is at $NOMAD_UNIX_ADDR.
      identity {
        env = true
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "while :; do echo \"hello from $NOMAD_TASK_NAME\"; echo \"hello from $NOMAD_TASK_NAME\" > \"$NOMAD_TASK_DIR/greeting\"; sleep 1; done"]
      }
    }
  }
}
