# A task that does nothing: the first run makes the key ring.
job "ring" {
  type = "batch"
  group "ring" {
    task "ring" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
