# The language: what is evaluated while the file is read, and what is left for the task's start.

variable "ports" {
  type = map(number)
  default = {
    http  = 8080
    admin = 9090
  }
}

variable "options" {
  type = object({
    name  = string
    debug = optional(bool, true)
  })
  default = {
    name = "x"
  }
}

variable "nothing" {
  type    = string
  default = null
}

locals {
  names   = [for name, port in var.ports : "${name}=${port}"]
  runtime = "at ${NOMAD_ALLOC_DIR}"
}

job "language" {
  group "g" {
    network {
      dynamic "port" {
        for_each = var.ports
        labels   = [port.key]
        content {
          static = port.value
        }
      }
    }

    task "t" {
      driver = "raw_exec"
      user   = var.nothing

      config {
        command = "echo"
        args = concat(
          local.names,
          [for x in ["a", "b"] : "${x}:${NOMAD_PORT_http}"],
          [var.options.debug ? "debug" : "quiet", local.runtime, "%{ if true }yes ${attr.kernel.name}%{ endif }"],
          [NOMAD_TASK_NAME, env["HOME"], "${node.unique.id}", "$${NOMAD_X}", "$$HOME", "%%{literal}"],
        )
        rendered = templatefile("files/hello.tmpl", { name = "world", list = ["p", "q"] })
        files    = fileset("files", "*.txt")
        inner    = jsonencode({ a = [1, "${NOMAD_JOB_NAME}"] })
        fallback = try(var.options.missing, "fallback")
        typed    = convert("7", number)
        null     = null
        big      = 12345678901234
        fraction = 0.25
      }
    }
  }
}
