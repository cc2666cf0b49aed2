# One group that shows what taskapi is for: "server" serves, "init" prepares, and "watcher" looks after the server through
# Nomad's API on its own socket, with its own token.
#
#   make demo                                                  builds, runs and explains it
#   bin/taskapi run -var bin="$PWD/bin" examples/demo.nomad.hcl      after `make build`, by hand; Ctrl-C stops it

variable "bin" {
  type        = string
  default     = "/usr/local/bin"
  description = "The folder, as an absolute path, that holds demo-server and demo-watcher."
}

job "demo" {
  type = "service"

  group "web" {
    network {
      port "http" {}
    }

    # Any failure ends the demo instead of being tried again.
    restart {
      attempts = 0
      mode     = "fail"
    }

    service {
      name     = "demo-web"
      provider = "nomad"
      port     = "http"

      check {
        name     = "alive"
        type     = "http"
        path     = "/healthz"
        interval = "1s"
        timeout  = "1s"
      }

      check {
        name     = "port"
        type     = "tcp"
        interval = "1s"
        timeout  = "1s"
      }
    }

    # Runs to its end before the server starts. The folder alloc/ is shared by the tasks of the group.
    task "init" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo \"hello from $NOMAD_TASK_NAME\" > \"$NOMAD_ALLOC_DIR/data/greeting.txt\""]
      }
    }

    task "server" {
      driver       = "raw_exec"
      kill_timeout = "5s"

      config {
        command = "${var.bin}/demo-server"
      }
    }

    # Starts before the server, stays beside it, and is stopped after it.
    task "watcher" {
      driver = "raw_exec"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      # The token is in secrets/nomad_token, and is renewed there long before it expires. Real jobs have a ttl of an hour or so.
      identity {
        file = true
        ttl  = "3s"
      }

      config {
        command = "${var.bin}/demo-watcher"
      }

      env {
        SERVER_URL  = "http://${NOMAD_ADDR_http}/"
        SERVER_TASK = "server"
      }
    }
  }
}
