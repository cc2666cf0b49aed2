# A task that runs a program from an archive, which is fetched and unpacked before the task starts. The archive lies on
# this machine, in a directory that the operator allows:
#
#   mkdir app && echo 'echo "hello from an artifact"' >app/hello.sh && tar -czf app.tar.gz app
#   taskapi run -o artifact.file_dirs=. -var archive="$PWD/app.tar.gz" examples/artifact.nomad.hcl
#
# A source may as well be https://HOST/app.tar.gz, or a repository: git::https://HOST/OWNER/REPOSITORY.
variable "archive" {
  type        = string
  default     = "https://example.com/app.tar.gz"
  description = "where the archive is: a path or a URL"
}

job "artifact" {
  type = "batch"

  group "app" {
    task "hello" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["local/app/hello.sh"]
      }

      artifact {
        source      = var.archive
        destination = "local/"
      }
    }
  }
}
