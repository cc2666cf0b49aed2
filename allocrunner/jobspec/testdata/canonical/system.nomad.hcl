job "system" {
  type = "system"
  group "g" {
    restart { mode = "delay" }
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
    }
  }
}
