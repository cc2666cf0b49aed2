job "services-nomad" {
  group "g" {
    network {
      port "http" {}
    }
    service {
      provider = "nomad"
      port     = "http"
      check {
        type     = "tcp"
        interval = "10s"
        timeout  = "2s"
      }
    }
    service {
      provider = "nomad"
      port     = "http"
      name     = "${JOB}-${TASKGROUP}-at-${TASK}"
      task     = "t"
      check_restart {
        limit = 3
      }
      check {
        type     = "http"
        path     = "/"
        interval = "10s"
        timeout  = "2s"
        header {
          Accept = []
        }
        check_restart {
          grace = "9s"
        }
      }
    }
    service {
      provider  = "nomad"
      port      = "http"
      name      = "ignored"
      on_update = "ignore"
      check {
        type     = "tcp"
        interval = "10s"
        timeout  = "2s"
      }
      check {
        type      = "tcp"
        name      = "own"
        interval  = "10s"
        timeout   = "2s"
        on_update = "require_healthy"
      }
    }
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
      service {
        provider = "nomad"
        port     = "http"
        check {
          type     = "tcp"
          interval = "10s"
          timeout  = "2s"
        }
      }
      service {
        provider = "nomad"
        name     = "${BASE}-again"
        port     = "http"
        address  = "192.0.2.1"
        tags     = []
        meta {}
      }
    }
  }
}
