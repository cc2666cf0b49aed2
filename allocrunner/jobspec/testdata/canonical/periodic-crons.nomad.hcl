job "periodic-crons" {
  type = "sysbatch"
  periodic {
    crons   = ["@daily", "@hourly"]
    enabled = false
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
    }
  }
}
