job "identities" {
  group "g" {
    task "another-audience" {
      driver = "raw_exec"
      config { command = "true" }
      identity {
        aud = ["bank.example.org"]
        env = true
      }
    }
    task "by-name" {
      driver = "raw_exec"
      config { command = "true" }
      identity {
        name          = "default"
        aud           = ["nomadproject.io", "bank.example.org"]
        file          = true
        change_mode   = "signal"
        change_signal = "sigusr1"
      }
      identity {
        name = "shortest"
      }
      identity {
        name          = "bank"
        aud           = ["bank.example.org"]
        file          = true
        filepath      = "local/bank.jwt"
        change_mode   = "signal"
        change_signal = "SIGhup"
      }
    }
    task "empty" {
      driver = "raw_exec"
      config { command = "true" }
      identity {}
    }
  }
}
