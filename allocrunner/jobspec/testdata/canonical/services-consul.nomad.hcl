job "services-consul" {
  namespace = "team"
  group "g" {
    network {
      port "http" {}
    }
    service {
      port = "http"
      task = "t"
      weights {}
      check {
        type     = "script"
        command  = "true"
        interval = "10s"
        timeout  = "2s"
        check_restart {
          ignore_warnings = true
        }
      }
    }
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
      service {
        name         = "${BASE}"
        port         = "http"
        address_mode = "host"
        identity {
          aud = ["consul.io"]
        }
        weights {
          passing = 2
        }
        check {
          type                   = "grpc"
          interval               = "10s"
          timeout                = "2s"
          success_before_passing = -1
        }
      }
    }
  }
}
