# Tasks that look for the data of the allocation before, and leave some.
variable "command" { default = "/bin/sh" }
variable "seconds" { default = 0 }
job "job" {
  type = "batch"
  group "g" {
    count = 2
    ephemeral_disk {
      sticky = true
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    dynamic "task" {
      for_each = ["a", "b"]
      labels   = [task.value]
      content {
        driver = "raw_exec"
        config {
          command = var.command
          args    = ["-c", "umask 077; echo uid $(id -u); cd local; data=$NOMAD_ALLOC_DIR/data/$NOMAD_TASK_NAME; if test -e mine; then echo found $(cat $data mine); else echo data >$data; echo local >mine; fi; exec sleep ${var.seconds}"]
        }
      }
    }
  }
}
