job "parameterized" {
  type = "batch"
  parameterized {}
  group "g" {
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
      dispatch_payload {
        file = "in"
      }
    }
  }
}
