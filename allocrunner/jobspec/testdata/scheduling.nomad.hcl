# What a group tells the scheduler, and every way to write a constraint.

job "scheduling" {
  type = "batch"

  group "g" {
    meta {
      level = "group"
    }

    update {
      max_parallel = 0
    }
    migrate {
      max_parallel = 3
    }
    reschedule {
      attempts = 0
    }
    spread {
      attribute = "${node.unique.id}"
    }
    affinity {
      attribute        = "${meta.tags}"
      set_contains_any = "a,b"
    }
    affinity {
      attribute        = "${meta.tags}"
      set_contains_all = "a,b"
    }
    affinity {
      attribute = "${attr.kernel.version}"
      semver    = ">= 5.0.0"
    }
    affinity {
      attribute = "${attr.kernel.version}"
      version   = ">= 5"
    }
    constraint {
      value     = "linux"
      attribute = "${attr.kernel.name}"
    }
    constraint {
      attribute = "${attr.nomad.version}"
      semver    = ">= 1.4.0"
    }
    constraint {
      attribute = "${attr.x}"
      regexp    = "[0-9]+"
    }
    constraint {
      attribute    = "${attr.x}"
      set_contains = "a"
    }
    constraint {
      attribute        = "${attr.x}"
      set_contains_all = "a"
    }
    constraint {
      attribute        = "${attr.x}"
      set_contains_any = "a"
    }
    constraint {
      distinct_property = "${meta.rack}"
      value             = "2"
    }
    constraint {
      distinct_hosts = false
    }
    constraint {
      attribute = "${meta.rack}"
      operator  = "is_set"
    }

    dynamic "task" {
      for_each = { a = "one", b = "two" }
      iterator = it
      labels   = ["task-${it.key}"]

      content {
        driver = "raw_exec"

        dynamic "constraint" {
          for_each = [it.value]
          content {
            attribute = "${meta.x}"
            value     = "${constraint.value}-${it.key}"
          }
        }

        config {
          command = "echo"
          args    = [it.value, "${NOMAD_TASK_NAME}", "${it.value}/${NOMAD_ALLOC_DIR}"]
        }
      }
    }
  }
}
