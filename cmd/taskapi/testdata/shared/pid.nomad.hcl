# A task that says its process and $TEXT, and starts again at once.
variable "text" { default = "one" }
job "job" {
  group "g" {
    restart {
      delay = "0s"
    }
    update {
      min_healthy_time = "1s"
    }
    task "t" {
      driver = "raw_exec"
      env {
        TEXT = var.text
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "echo $$ > local/pid; echo $TEXT; exec sleep 1000"]
      }
    }
  }
}
