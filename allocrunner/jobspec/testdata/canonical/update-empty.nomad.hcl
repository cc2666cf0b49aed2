job "update-empty" {
  update {}
  group "g" {
    update {}
    reschedule {}
    restart {}
    migrate {}
    ephemeral_disk {}
    disconnect {}
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
      restart {}
      kill_timeout = "0s"
    }
  }
}
