job "demo" {
  group "web" {
    network {
      port "http" {}
    }
    service {
      provider = "nomad"
      port = "http"
      check {
        name = "alive"
        type = "http"
        path = "/"
        interval = "2s"
        timeout = "1s"
      }
      check {
        name = "tcp"
        type = "tcp"
        interval = "2s"
        timeout = "1s"
      }
    }
    task "server" {
      driver = "raw_exec"
      config {
        command = "python3"
        args = ["-m", "http.server", "${NOMAD_PORT_http}", "--bind", "127.0.0.1"]
      }
      identity {
        env = true
        file = true
      }
      resources {
        cpu = 50
        memory = 64
      }
    }
    task "init" {
      driver = "raw_exec"
      lifecycle { hook = "prestart" }
      config { command = "true" }
      resources {
        cpu = 50
        memory = 16
      }
    }
  }
}
