job "periodic" {
  type = "batch"
  periodic {
    cron = "@daily"
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
    }
  }
}
