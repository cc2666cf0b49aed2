job "networks" {
  group "g" {
    network {
      port "dynamic" {}
      port "mapped" { to = 80 }
      port "static" { static = 9100 }
      port "public" {
        static       = 9101
        host_network = "public"
      }
    }
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
      resources {
        network {
          port "old" {}
          port "fixed" { static = 9102 }
        }
      }
    }
  }
  group "empty" {
    network {}
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
      resources {
        cores = 1
        device "nvidia/gpu" {}
      }
    }
  }
}
