# A task whose identity is for the service. The service trusts the issuer of `run -o identity.issuer=URL`.
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
