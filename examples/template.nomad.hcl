# A task whose configuration is rendered from a variable and a service, and rendered again when they change:
#
#   taskapi run -d examples/template.nomad.hcl
#   taskapi var put nomad/jobs/template colour=blue            # the task starts now, and waits for that before
#   taskapi var put -force nomad/jobs/template colour=green    # the task gets a SIGHUP, and reads its file again
#   taskapi logs
job "template" {
  type = "service"

  group "app" {
    network {
      port "http" {}
    }

    service {
      name     = "painter"
      port     = "http"
      provider = "nomad"
    }

    task "painter" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args = ["-c", <<-EOT
          show() { cat local/app.conf; echo "level=$LEVEL"; }
          trap show HUP
          show
          while :; do sleep 1; done
        EOT
        ]
      }

      template {
        destination   = "local/app.conf"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        splay         = "0s"
        data          = <<-EOT
          {{- with nomadVar "nomad/jobs/template" }}
          colour={{ .colour }}
          {{- end }}
          {{- range nomadService "painter" }}
          painter={{ .Address }}:{{ .Port }}
          {{- end }}
        EOT
      }

      template {
        destination = "secrets/level.env"
        env         = true
        perms       = "0600"
        data        = <<-EOT
          LEVEL={{ env "NOMAD_TASK_NAME" | toUpper }}
        EOT
      }
    }
  }
}
