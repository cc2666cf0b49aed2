# Batch: a job that ends. A task that fails is tried again as its restart policy says; when every task has ended well the
# allocation is complete, and `taskapi run` ends with exit code 0.
#
#   taskapi run examples/batch.nomad.hcl
#   taskapi run -var failures=9 examples/batch.nomad.hcl       more than the policy bears: exit code 1

variable "failures" {
  type        = number
  default     = 2
  description = "How often the task fails before it succeeds."
}

job "batch" {
  type = "batch"

  group "work" {
    restart {
      attempts = 3
      interval = "1m"
      delay    = "1s"
      mode     = "fail"
    }

    task "stubborn" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          tried=$(cat "$NOMAD_TASK_DIR/tried" 2>/dev/null || echo 0)
          if [ "$tried" -lt ${var.failures} ]; then
            echo $((tried + 1)) > "$NOMAD_TASK_DIR/tried"
            echo "attempt $((tried + 1)) fails" >&2
            exit 1
          fi
          echo "attempt $((tried + 1)) succeeds"
          EOF
        ]
      }
    }
  }
}
