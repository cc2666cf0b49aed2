variable "job" { default = "job" }
variable "namespace" { default = "default" }
variable "type" { default = "service" }
variable "user" { default = "" }
variable "script" { default = "exec sleep 1000" }
job "job" {
  id        = var.job
  name      = var.job
  namespace = var.namespace
  type      = var.type
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "t" {
      driver = "raw_exec"
      user   = var.user
      identity {
        file = true
      }
      config {
        command = "/bin/sh"
        args    = ["-c", var.script]
      }
    }
  }
}
