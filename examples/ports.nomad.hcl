# Ports: found free when the allocation starts, and given to every task of the group.
#
#   taskapi run examples/ports.nomad.hcl
#   taskapi run -var admin=9900 examples/ports.nomad.hcl
#
# A dynamic port is any free one; a static port must be free, or the allocation fails and says who may be in the way.

variable "admin" {
  type    = number
  default = 18646
}

job "ports" {
  type = "batch"

  group "show" {
    network {
      port "http" {}

      port "admin" {
        static = var.admin
      }
    }

    task "print" {
      driver = "raw_exec"

      env {
        LISTEN = "${NOMAD_IP_http}:${NOMAD_PORT_http}"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo http on $LISTEN, admin on $NOMAD_ADDR_admin"]
      }
    }
  }
}
