# A task whose identity is for the service. The service trusts the issuer that `taskapi run --issuer` names.
job "caller" {
  type = "batch"
  group "caller" {
    task "caller" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["3600"]
      }
    }
  }
}
