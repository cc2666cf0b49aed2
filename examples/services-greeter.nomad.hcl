# A service that others find by its name: it is registered while the server runs, with the port that it has got, and leaves before the
# server stops. examples/services.sh runs it beside services-caller.nomad.hcl.
#
#   bin/taskapi run --detach -var bin="$PWD/bin" examples/services-greeter.nomad.hcl      after `make build`
#   bin/taskapi service info greeter

variable "bin" {
  type        = string
  default     = "/usr/local/bin"
  description = "The folder, as an absolute path, that holds demo-server."
}

variable "greeting" {
  type    = string
  default = "hello"
}

job "greeter" {
  group "web" {
    network {
      port "http" {}
    }

    service {
      name     = "greeter"
      provider = "nomad"
      port     = "http"
      tags     = ["greeting-${var.greeting}"]

      check {
        name     = "alive"
        type     = "http"
        path     = "/healthz"
        interval = "1s"
        timeout  = "1s"
      }
    }

    task "init" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo '${var.greeting}' > \"$NOMAD_ALLOC_DIR/data/greeting.txt\""]
      }
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "${var.bin}/demo-server"
      }
    }
  }
}
