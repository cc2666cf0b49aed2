job "update-none" {
  update {
    max_parallel = 0
  }
  group "g" {
    update {
      canary = 1
    }
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
    }
  }
  group "h" {
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
    }
  }
}
