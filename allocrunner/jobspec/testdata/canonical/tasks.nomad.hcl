job "tasks" {
  vault {
    role = "r"
  }
  secret "shared" {
    provider = "nomad"
    path     = "nomad/jobs"
  }
  group "g" {
    task "first" {
      driver = "raw_exec"
      config { command = "true" }
      lifecycle {
        hook = "prestart"
      }
      logs {
        max_files = 3
      }
      artifact {
        source = "https://example.org/a.tgz"
      }
      artifact {
        source = "https://example.org/b"
        mode   = "file"
        options {}
      }
      action "a" {
        command = "true"
      }
      csi_plugin {
        id   = "p"
        type = "node"
      }
      consul {}
      kill_signal = "sigint"
      resources {
        memory = 20
      }
    }
    task "second" {
      driver = "raw_exec"
      config { command = "true" }
      vault {
        change_mode   = "signal"
        change_signal = "sigusr1"
      }
      secret "s" {
        provider = "nomad"
        path     = "nomad/jobs"
      }
      logs {}
      resources {}
    }
  }
  group "h" {
    consul {}
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
      logs {
        disabled = true
      }
    }
  }
}
