job "update" {
  update {
    max_parallel     = 2
    min_healthy_time = "5s"
    canary           = 1
  }
  reschedule {
    delay = "7s"
  }
  migrate {
    max_parallel = 2
  }
  group "inherits" {
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
    }
  }
  group "merges" {
    update {
      health_check = "task_states"
      auto_revert  = true
    }
    reschedule {
      unlimited = false
      attempts  = 3
      interval  = "1h"
    }
    migrate {
      health_check = "task_states"
    }
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
    }
  }
  group "none" {
    update {
      max_parallel = 0
    }
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
    }
  }
}
