# Every block and argument of the job specification except those of Consul's service mesh.

variable "image" {
  type        = string
  description = "What to run."
  default     = "server"

  validation {
    condition     = length(var.image) > 0
    error_message = "The image must have a name."
  }
}

variables {
  greeting = "hello"
}

locals {
  full  = "${local.short}-${var.image}"
  short = upper(var.greeting)
}

job "everything" {
  id          = "everything-id"
  name        = "everything"
  region      = "north"
  namespace   = "team"
  type        = "service"
  priority    = 70
  all_at_once = true
  datacenters = ["dc1", "dc2"]
  node_pool   = "gpu"

  meta {
    owner = "blue"
    level = 3
    live  = true
  }

  constraint {
    attribute = "${attr.kernel.name}"
    operator  = "="
    value     = "linux"
  }

  affinity {
    attribute = "${node.datacenter}"
    value     = "dc1"
    operator  = "="
    weight    = -50
  }

  spread {
    attribute = "${node.datacenter}"
    weight    = 60

    target "dc1" {
      percent = 70
    }
    target "dc2" {
      percent = 30
    }
  }

  update {
    stagger           = "20s"
    max_parallel      = 2
    health_check      = "checks"
    min_healthy_time  = "5s"
    healthy_deadline  = "2m"
    progress_deadline = "5m"
    canary            = 1
    auto_revert       = true
    auto_promote      = true
  }

  multiregion {
    strategy {
      max_parallel = 1
      on_failure   = "fail_all"
    }
    region "west" {
      count       = 2
      datacenters = ["west-1"]
      node_pool   = "default"
      meta {
        side = "left"
      }
    }
  }

  periodic {
    enabled          = true
    cron             = "*/5 * * * *"
    crons            = ["0 1 * * *", "0 2 * * *"]
    prohibit_overlap = true
    time_zone        = "Europe/Berlin"
  }

  parameterized {
    payload       = "required"
    meta_required = ["who"]
    meta_optional = ["why"]
  }

  reschedule {
    attempts       = 3
    interval       = "1h"
    delay          = "10s"
    delay_function = "fibonacci"
    max_delay      = "10m"
    unlimited      = false
  }

  migrate {
    max_parallel     = 2
    health_check     = "task_states"
    min_healthy_time = "4s"
    healthy_deadline = "3m"
  }

  ui {
    description = "all there is"
    link {
      label = "docs"
      url   = "https://example.org"
    }
  }

  vault {
    policies               = ["read"]
    role                   = "role"
    namespace              = "ns"
    cluster                = "c1"
    env                    = false
    disable_file           = true
    change_mode            = "signal"
    change_signal          = "SIGUSR1"
    allow_token_expiration = true
  }

  group "web" {
    count                        = 2
    shutdown_delay               = "3s"
    max_run_duration             = "8h"
    stop_after_client_disconnect = "1m"
    max_client_disconnect        = "2m"
    prevent_reschedule_on_lost   = true

    consul {
      namespace = "ns"
      cluster   = "c1"
      partition = "p"
    }

    constraint {
      distinct_hosts = true
    }

    volume "data" {
      type            = "csi"
      source          = "disk-${NOMAD_ALLOC_INDEX}"
      read_only       = true
      sticky          = true
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
      per_alloc       = true
      mount_options {
        fs_type     = "ext4"
        mount_flags = ["noatime"]
      }
    }

    restart {
      interval         = "10m"
      attempts         = 4
      delay            = "7s"
      mode             = "delay"
      render_templates = true
    }

    disconnect {
      lost_after           = "1m"
      stop_on_client_after = "2m"
      replace              = true
      reconcile            = "keep_original"
    }

    ephemeral_disk {
      sticky  = true
      migrate = true
      size    = 500
    }

    scaling {
      enabled = true
      min     = 1
      max     = 5
      type    = "horizontal"
      policy {
        cooldown = "1m"
        check "cpu" {
          source = "prometheus"
          strategy "target-value" {
            target = 70.5
          }
        }
      }
    }

    network {
      mode     = "bridge"
      device   = "eth0"
      cidr     = "10.0.0.0/8"
      ip       = "10.0.0.1"
      hostname = "web-${NOMAD_ALLOC_INDEX}"
      mbits    = 10

      dns {
        servers  = ["1.1.1.1"]
        searches = ["example.org"]
        options  = ["ndots:2"]
      }

      cni {
        args = {
          key = "value"
        }
      }

      port "http" {
        to           = 8080
        host_network = "public"
      }
      port "admin" {
        static           = 9000
        ignore_collision = true
      }
      reserved_ports "old" {
        static = 9001
      }
    }

    service {
      name                = "web-${NOMAD_ALLOC_INDEX}"
      provider            = "nomad"
      cluster             = "c1"
      kind                = "api-gateway"
      port                = "http"
      address             = "10.1.1.1"
      address_mode        = "auto"
      tags                = ["a", "${local.full}"]
      canary_tags         = ["c"]
      enable_tag_override = true
      task                = "server"
      on_update           = "ignore"

      meta {
        a = "1"
      }
      canary_meta {
        b = "2"
      }
      tagged_addresses {
        lan = "10.1.1.1"
      }
      weights {
        passing = 5
        warning = 2
      }
      identity {
        name         = "consul"
        aud          = ["consul.io"]
        service_name = "web"
        file         = true
      }

      check_restart {
        limit           = 3
        grace           = "20s"
        ignore_warnings = true
      }

      check {
        name                     = "alive"
        type                     = "http"
        path                     = "/health"
        protocol                 = "https"
        port                     = "http"
        expose                   = true
        address_mode             = "host"
        advertise                = "10.1.1.1"
        interval                 = "10s"
        timeout                  = "2s"
        initial_status           = "passing"
        notes                    = "why"
        tls_server_name          = "example.org"
        tls_skip_verify          = true
        method                   = "POST"
        body                     = "{}"
        grpc_service             = "g"
        grpc_use_tls             = true
        task                     = "server"
        command                  = "/bin/check"
        args                     = ["-v"]
        success_before_passing   = 1
        failures_before_critical = 2
        failures_before_warning  = 1
        on_update                = "ignore_warnings"

        header {
          Authorization = ["Basic ZWxhc3RpYw=="]
        }
        check_restart {
          limit = 2
        }
      }
    }

    task "server" {
      driver         = "raw_exec"
      user           = "nobody"
      leader         = true
      shutdown_delay = "1s"
      kill_timeout   = "20s"
      kill_signal    = "SIGTERM"
      kind           = "connect-proxy:web"

      lifecycle {
        hook    = "poststart"
        sidecar = true
      }

      config {
        command = "/usr/bin/${var.image}"
        args    = ["--port", NOMAD_PORT_http, "--name", "a-${var.greeting}-${NOMAD_TASK_NAME}", 7, 1.5, true]
        ports   = { http = 8080 }

        mount {
          type   = "bind"
          source = "local"
        }
        dynamic "mount" {
          for_each = ["x", "y"]
          content {
            source = "/${mount.value}/${NOMAD_ALLOC_ID}"
          }
        }
        label "outer" "inner" {
          deep = true
        }
      }

      env {
        PLAIN   = "1"
        NUMBER  = 2
        FLAG    = false
        FULL    = local.full
        RUNTIME = "${NOMAD_ADDR_http} ${env["HOME"]} ${meta.owner} $${escaped}"
        FILE    = file("files/greeting.txt")
        HEREDOC = <<-EOT
          port ${NOMAD_PORT_http}
          ${var.greeting}
        EOT
      }

      meta = {
        "dotted.key" = "yes"
      }

      constraint {
        attribute = "${attr.nomad.version}"
        version   = ">= 1.4"
      }

      affinity {
        attribute = "${attr.cpu.arch}"
        regexp    = "arm|amd"
      }

      restart {
        attempts = 1
      }

      logs {
        max_files     = 3
        max_file_size = 5
        enabled       = true
        disabled      = true
      }

      resources {
        cpu        = 200
        cores      = 2
        memory     = 128
        memory_max = 256
        disk       = 10
        secrets    = 2
        iops       = 1

        network {
          port "own" {}
        }

        device "nvidia/gpu" {
          count = 2
          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "2 GiB"
          }
          affinity {
            attribute      = "${device.attr.features}"
            set_contains   = "cuda"
            weight         = 10
          }
        }

        numa {
          affinity = "require"
          devices  = ["nvidia/gpu"]
        }
      }

      artifact {
        source      = "https://example.org/a.zip"
        destination = "local/a"
        mode        = "dir"
        insecure    = true
        chown       = true
        options {
          checksum = "md5:df6a4178aec9fbdc1d6d7e3634d1bc33"
        }
        headers {
          X-Token = "${NOMAD_JOB_NAME}"
        }
      }

      template {
        source               = "local/in.tpl"
        destination          = "local/out.txt"
        data                 = "{{ env \"NOMAD_PORT_http\" }} ${NOMAD_ALLOC_ID}"
        change_mode          = "script"
        change_signal        = "sighup"
        once                 = true
        splay                = "2s"
        perms                = "600"
        uid                  = 1000
        gid                  = 1001
        left_delimiter       = "[["
        right_delimiter      = "]]"
        env                  = true
        vault_grace          = "15s"
        error_on_missing_key = true

        wait {
          min = "1s"
          max = "3s"
        }
        change_script {
          command             = "/bin/reload"
          args                = ["-a"]
          timeout             = "4s"
          fail_on_error       = true
          run_on_first_render = true
        }
      }

      consul {
        cluster = "c2"
      }

      dispatch_payload {
        file = "input.txt"
      }

      volume_mount {
        volume           = "data"
        destination      = "/data"
        read_only        = true
        propagation_mode = "private"
        selinux_label    = "Z"
      }

      csi_plugin {
        id                     = "plug"
        type                   = "monolith"
        mount_dir              = "/csi"
        stage_publish_base_dir = "/local/csi"
        health_timeout         = "1m"
      }

      scaling "cpu" {
        min = 10
        max = 100
        policy {
          cooldown = "5m"
        }
      }
      scaling "mem" {
        enabled = false
        max     = 200
      }

      secret "db" {
        provider = "vault"
        path     = "kv/db"
        config {
          engine = "kv_v2"
        }
        env {
          USER = "admin"
        }
      }

      identity {
        env  = true
        file = true
      }
      identity {
        name          = "bank"
        aud           = ["bank.example.org"]
        change_mode   = "signal"
        change_signal = "SIGHUP"
        env           = true
        file          = true
        filepath      = "local/bank.jwt"
        ttl           = "1h"
        extra_claims  = ["team"]
      }

      action "backup" {
        command = "/bin/backup"
        args    = ["--all"]
      }

      schedule {
        cron {
          start    = "0 8 * * *"
          end      = "0 20 * * *"
          timezone = "UTC"
        }
      }

      service {
        name = "own"
        port = "http"
      }
    }
  }

  # A task right under the job is a group of its own.
  task "alone" {
    driver = "raw_exec"
    config = {
      command = "true"
    }
  }
}
