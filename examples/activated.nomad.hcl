# A server that says when it is ready, and whose port stays open while it restarts: no client is refused. It needs
# python3.
#
#   taskapi run -d --wait examples/activated.nomad.hcl
#   taskapi ps activated         # shows what the server says about itself
#   taskapi restart activated
job "activated" {
  group "activated" {
    network {
      port "http" {}
    }
    update {
      min_healthy_time = "100ms"
    }
    service {
      name     = "activated"
      provider = "nomad"
      port     = "http"
    }

    task "server" {
      driver = "raw_exec"

      meta {
        taskapi_listen        = "http" # the socket is descriptor 3
        taskapi_notify        = "true"
        taskapi_ready_timeout = "30s"
      }

      config {
        command = "/usr/bin/env"
        args    = ["python3", "-u", "-c", <<-EOT
          import http.server, os, signal, socket, threading

          def notify(text):
              with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
                  s.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])

          class Handler(http.server.BaseHTTPRequestHandler):
              def do_GET(self):
                  body = b"hello from process %d\n" % os.getpid()
                  self.send_response(200)
                  self.send_header("Content-Length", str(len(body)))
                  self.end_headers()
                  self.wfile.write(body)

          class Server(http.server.ThreadingHTTPServer):
              daemon_threads = False    # the end waits for answers that are being written

          server = Server(("", 0), Handler, bind_and_activate=False)
          server.socket.close()
          server.socket = socket.socket(fileno=3)

          # shutdown ends serve_forever, and waits for that. It touches no socket.
          signal.signal(signal.SIGINT, lambda *_: threading.Thread(target=server.shutdown).start())
          notify("READY=1\nSTATUS=serving as process %d" % os.getpid())
          server.serve_forever(poll_interval=0.1)
          notify("STOPPING=1\nSTATUS=answering the last requests")
          server.server_close()
        EOT
        ]
      }
    }
  }
}
