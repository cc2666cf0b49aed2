# A task that follows a variable of its job, and says at once that it was written. It needs /bin/sh, grep and curl.
#
#   taskapi run -d examples/variables.nomad.hcl
#   printf hunter2 | taskapi var put -force nomad/jobs/variables password=-
#   taskapi logs
job "variables" {
  group "group" {
    task "reader" {
      driver      = "raw_exec"
      kill_signal = "SIGTERM" # a shell that waits for curl takes no SIGINT
      identity {
        env = true
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "cd $NOMAD_TASK_DIR; eval \"$FOLLOW\""]
      }
      env {
        FOLLOW = <<-EOT
          index=0
          while :; do
            printf 'X-Nomad-Token: %s\n' "$NOMAD_TOKEN" |
              curl -sS -H @- -D head -o variable --unix-socket "$${NOMAD_UNIX_ADDR#unix://}" "localhost/v1/var/nomad/jobs/$NOMAD_JOB_ID?index=$index&wait=5m" || exit
            if grep -q password variable; then echo "the password has changed"; else echo "there is no password"; fi
            index=$(tr -d '\r' < head | sed -n 's/^X-Nomad-Index: //p')
          done
        EOT
      }
    }
  }
}
