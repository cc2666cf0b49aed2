# Checks: a task that goes bad after a while, and is restarted each time its check has failed twice.
#
#   taskapi run examples/checks.nomad.hcl
#   taskapi run -var good_for=30 examples/checks.nomad.hcl
#
# The script check runs in the task's own environment and directory. The restarts count as failures in the restart policy: after
# the second one there are no more, and the allocation has failed. Until then its health shows in the DeploymentStatus.

variable "good_for" {
  type        = number
  default     = 3
  description = "how many seconds the task is well after each start"
}

job "checks" {
  group "g" {
    update {
      min_healthy_time = "2s"
      healthy_deadline = "1m"
    }

    restart {
      attempts = 2
      delay    = "1s"
      mode     = "fail"
    }

    task "milk" {
      driver = "raw_exec"

      env {
        GOOD_FOR = "${var.good_for}"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "touch local/fresh; sleep $GOOD_FOR; rm local/fresh; exec sleep 1000"]
      }

      service {
        name     = "milk"
        provider = "nomad"

        check {
          name     = "fresh"
          type     = "script"
          command  = "/usr/bin/test"
          args     = ["-e", "local/fresh"]
          interval = "1s"
          timeout  = "1s"

          check_restart {
            limit = 2
            grace = "1s"
          }
        }
      }
    }
  }
}
