job "batch" {
  type = "batch"
  group "g" {
    restart { attempts = 1 }
    reschedule { attempts = 2 }
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
      restart { delay = "1s" }
    }
  }
}
