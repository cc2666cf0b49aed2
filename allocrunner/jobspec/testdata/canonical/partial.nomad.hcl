job "partial" {
  priority  = 0
  namespace = "default"
  constraint {
    attribute = "${attr.a}"
    semver    = "> 1.0.0"
  }
  constraint {
    distinct_property = "${attr.a}"
  }
  constraint {
    attribute    = "${attr.a}"
    set_contains = "x"
  }
  constraint {
    attribute = "${attr.a}"
    operator  = "is_set"
  }
  affinity {
    attribute        = "${attr.a}"
    set_contains_any = "x"
    weight           = -20
  }
  spread {
    attribute = "${attr.a}"
    weight    = 30
    target "x" {
      percent = 10
    }
    target "y" {}
  }
  group "scaled" {
    count = 2
    scaling {
      max     = 3
      enabled = false
      policy {
        cooldown = "1m"
      }
    }
    volume "disk" {
      type            = "csi"
      source          = "disk"
      access_mode     = "multi-node-multi-writer"
      attachment_mode = "file-system"
      mount_options {
        fs_type = "ext4"
      }
    }
    restart {
      render_templates = true
      interval         = "1m"
    }
    disconnect {
      stop_on_client_after = "1m"
      replace              = false
    }
    network {
      mode = "host"
      port "http" {
        to = -1
      }
    }
    ephemeral_disk {
      size = 500
    }
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
      scaling "mem" {
        max = 200
      }
      volume_mount {
        volume           = "disk"
        destination      = "disk"
        propagation_mode = "bidirectional"
      }
      resources {
        memory_max = 400
        device "nvidia/gpu" {
          affinity {
            attribute = "${device.attr.memory}"
            value     = "1"
          }
        }
      }
      logs {
        enabled = false
      }
      vault {
        env          = false
        disable_file = true
      }
      template {
        data                 = "x"
        destination          = "local/x"
        env                  = true
        error_on_missing_key = true
        change_mode          = "noop"
        change_signal        = ""
        wait {
          max = "4m"
        }
      }
      artifact {
        source      = "git::https://example.org/a"
        destination = "local/a"
        mode        = "dir"
        headers {
          X-A = "b"
        }
      }
      lifecycle {
        hook    = "poststart"
        sidecar = true
      }
      leader         = false
      shutdown_delay = "1s"
      user           = ""
    }
    task "main" {
      driver = "raw_exec"
    }
  }
  task "alone" {
    driver = "raw_exec"
    csi_plugin {
      id                     = "p"
      type                   = "monolith"
      stage_publish_base_dir = "/x"
    }
  }
}
