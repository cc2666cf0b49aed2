# A task that follows a variable of its job: write it with
#
#   printf hunter2 | taskapi var put -force nomad/jobs/variables password=-
#
# and the task says so at once. It needs /bin/sh, grep and curl.
job "variables" {
  group "group" {
    task "reader" {
      driver = "raw_exec"
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
