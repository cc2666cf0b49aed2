# A small web service from Debian's packages: redis starts first, "migrate" prepares its data, then nginx serves.
#
#   apt-get install nginx redis-server
#   taskapi run -d --wait --isolate-users examples/web.nomad.hcl    as root
#   taskapi run -d --wait examples/web.nomad.hcl                    as another user
#   taskapi service info web                                        where it listens
#
# Debian also starts the two packages' own services, which this job does not need: systemctl disable --now nginx redis-server

job "web" {
  group "web" {
    network {
      port "http" {}
    }

    update {
      min_healthy_time = "2s"
    }

    service {
      name     = "web"
      provider = "nomad"
      port     = "http"

      check {
        name     = "answers"
        type     = "http"
        path     = "/"
        interval = "2s"
        timeout  = "2s"
      }

      check {
        name     = "redis"
        type     = "script"
        task     = "redis"
        command  = "/usr/bin/redis-cli"
        args     = ["-e", "-s", "data/redis.sock", "ping"]
        interval = "2s"
        timeout  = "2s"
      }
    }

    # It runs before the other two and beside them. Its socket lies in alloc/data, where only this group's tasks come.
    task "redis" {
      driver = "raw_exec"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        command  = "/usr/bin/redis-server"
        work_dir = "${NOMAD_ALLOC_DIR}"
        args = [
          "--port", "0", "--dir", "data", "--unixsocket", "redis.sock", "--unixsocketperm", "777", "--appendonly", "yes",
        ]
      }
    }

    # nginx starts when this has ended well. It may run again, so each step must do no harm the second time.
    task "migrate" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args = ["-euc", <<-EOT
          cd "$NOMAD_ALLOC_DIR/data"
          redis() { redis-cli -e -s redis.sock "$@"; }
          until redis ping >/dev/null 2>&1; do sleep 0.1; done
          redis set schema 1 nx
          redis set greeting 'hello from redis' nx
          mkdir -p www
          redis get greeting >www/index.html
          EOT
        ]
      }
    }

    task "nginx" {
      driver      = "raw_exec"
      kill_signal = "SIGQUIT" # nginx then answers the requests that it has

      config {
        command = "/bin/sh"
        args = ["-euc", <<-EOT
          cat >"$NOMAD_TASK_DIR/nginx.conf" <<CONF
          daemon off;
          error_log stderr;
          pid nginx.pid;
          # Else the workers of root's nginx become another user, who can't read the allocation's files.
          $([ "$(id -u)" != 0 ] || echo 'user root root;')
          events {}
          http {
            access_log off;
            client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
            server {
              listen $NOMAD_ADDR_http;
              root $NOMAD_ALLOC_DIR/data/www;
            }
          }
          CONF
          exec /usr/sbin/nginx -e stderr -p "$NOMAD_TASK_DIR" -c nginx.conf
          EOT
        ]
      }
    }
  }
}
