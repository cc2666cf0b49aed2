job "scheduling" {
  affinity {
    attribute = "${attr.a}"
    value     = "x"
  }
  spread {
    attribute = "${attr.a}"
    target "x" {}
  }
  ui {
    link {
      label = "l"
      url   = "https://example.org"
    }
  }
  group "g" {
    constraint {
      attribute = "${attr.a}"
      value     = "x"
    }
    constraint {
      distinct_hosts = true
    }
    spread {
      attribute = "${attr.a}"
    }
    affinity {
      attribute = "${attr.a}"
      version   = "> 1"
    }
    scaling {
      min = 2
      max = 3
    }
    disconnect {
      lost_after = "1m"
    }
    ephemeral_disk {
      sticky = true
    }
    volume "v" {
      type   = "host"
      source = "v"
    }
    shutdown_delay = "1s"
    meta {}
    task "t" {
      driver = "raw_exec"
      config {}
      env {}
      volume_mount {
        volume      = "v"
        destination = "v"
      }
      scaling "cpu" {
        min = 10
        max = 20
      }
      constraint {
        attribute = "${attr.a}"
        regexp    = "x"
      }
    }
  }
}
