# A task that finds the service "greeter" of other allocations, over its own socket with its own identity, and follows it: each query waits
# until something has changed. It needs curl, and runs unchanged as a task of a Nomad client. examples/services.sh runs it beside
# services-greeter.nomad.hcl.
#
#   bin/taskapi run examples/services-caller.nomad.hcl

job "caller" {
  group "g" {
    task "caller" {
      driver      = "raw_exec"
      kill_signal = "SIGTERM" # a shell that waits for curl takes no SIGINT

      identity {
        env = true
      }

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          index=0
          while answer=$(printf 'X-Nomad-Token: %s\n' "$NOMAD_TOKEN" | curl -sSf -H @- -D local/head \
              --unix-socket "$NOMAD_SECRETS_DIR/api.sock" "localhost/v1/service/greeter?index=$index&wait=1m"); do
            index=$(sed -n 's/^X-Nomad-Index: *\([0-9]*\).*/\1/Ip' local/head)
            found=$(printf %s "$answer" | tr '{' '\n' | sed -n 's/.*"Address":"\([^"]*\)".*"Port":\([0-9]*\).*/\1:\2/p')
            echo "greeters: $(echo $found | wc -w)"
            for address in $found; do
              curl -sSf --retry 5 --retry-max-time 10 --retry-connrefused "http://$address/" | tr ',' '\n' | sed -n 's/.*"Greeting": *\("[^"]*"\).*/  \1/p'
            done
          done
          EOF
        ]
      }
    }
  }
}
