# A task of a Nomad cluster whose Task API is served by taskapi: docs/gateway.md.
variable "taskapi" {
  description = "path of the program on the client"
  default     = "/usr/local/bin/taskapi"
}

job "gateway" {
  type = "service"

  group "app" {
    task "gateway" {
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      driver = "raw_exec"
      config {
        command = var.taskapi
        args = ["gateway",
          "-o", "limits.waits=256", "-o", "limits.connections=512",
          "-o", "audit.path=${NOMAD_TASK_DIR}/audit.log",
          "web", "worker"]
      }
      identity {
        file = true # for the cluster's public keys
      }
      resources {
        cpu    = 100
        memory = 64
      }
    }

    task "web" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo $NOMAD_UNIX_ADDR; exec sleep 1000000"]
      }
      env {
        NOMAD_UNIX_ADDR = "unix://${NOMAD_ALLOC_DIR}/taskapi/${NOMAD_TASK_NAME}/api.sock"
      }
      identity {
        env  = true
        file = true
      }
      resources {
        cpu    = 20
        memory = 20
      }
    }

    task "worker" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "exec sleep 1000000"]
      }
      env {
        NOMAD_UNIX_ADDR = "unix://${NOMAD_ALLOC_DIR}/taskapi/${NOMAD_TASK_NAME}/api.sock"
      }
      identity {
        file = true
      }
      resources {
        cpu    = 20
        memory = 20
      }
    }
  }
}
