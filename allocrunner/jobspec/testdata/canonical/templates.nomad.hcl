job "templates" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
      template {
        data        = "x"
        destination = "local/x"
      }
      template {
        source          = "local/in"
        destination     = "local/out"
        change_mode     = "signal"
        left_delimiter  = "[["
        wait {
          min = "1s"
        }
      }
      template {
        data          = "y"
        destination   = "local/y"
        change_mode   = "signal"
        change_signal = "sigusr1"
        perms         = "600"
        uid           = 1
      }
      template {
        data        = "z"
        destination = "local/z"
        change_mode = "script"
        change_script {
          command = "/bin/true"
        }
      }
    }
  }
}
