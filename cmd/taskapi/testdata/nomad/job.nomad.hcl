# The job that Nomad's answers in answers.jsonl are of.
job "demo" {
  meta {
    owner = "me"
  }
  ui {
    description = "a job"
    link {
      label = "l"
      url   = "https://example.com"
    }
  }
  group "web" {
    meta {
      tier = "front"
    }
    network {
      port "http" {}
      port "admin" {}
    }
    restart {
      attempts = 1
      mode     = "fail"
    }
    update {
      min_healthy_time = "1s"
    }
    scaling {
      max = 1
      policy {
        cooldown = "1m"
      }
    }
    service {
      provider = "nomad"
      name     = "web"
      port     = "http"
      tags     = ["a", "b"]
      check {
        name     = "answers"
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "1s"
      }
      check {
        name     = "listens"
        type     = "tcp"
        interval = "1s"
        timeout  = "1s"
      }
    }
    task "init" {
      driver = "raw_exec"
      lifecycle {
        hook = "prestart"
      }
      config {
        command = "/bin/true"
      }
    }
    task "server" {
      driver = "raw_exec"
      leader = true
      config {
        command = "TESTBINARY"
        args    = ["-test.run=^$"]
      }
      env {
        TASKAPI_TEST_SERVE = "127.0.0.1:${NOMAD_PORT_http}"
      }
      meta {
        role = "main"
      }
      identity {
        env  = true
        file = true
      }
      resources {
        cpu    = 50
        memory = 64
      }
      action "date" {
        command = "/bin/date"
      }
    }
    task "other" {
      driver = "raw_exec"
      lifecycle {
        hook    = "poststart"
        sidecar = true
      }
      service {
        provider = "nomad"
        name     = "other"
        port     = "admin"
      }
      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
    }
  }
}
