# What a service says to Consul's service mesh.

job "mesh" {
  group "proxied" {
    service {
      name = "api"
      port = "9001"

      connect {
        sidecar_service {
          tags                     = ["proxy"]
          port                     = "proxy"
          disable_default_tcp_check = true

          meta {
            a = "b"
          }

          proxy {
            local_service_address = "127.0.0.1"
            local_service_port    = 9001

            expose {
              path {
                path            = "/health"
                protocol        = "http"
                local_path_port = 9001
                listener_port   = "health"
              }
            }

            upstreams {
              destination_name        = "db"
              destination_namespace   = "ns"
              destination_peer        = "peer"
              destination_partition   = "part"
              destination_type        = "service"
              local_bind_port         = 5432
              datacenter              = "dc2"
              local_bind_address      = "127.0.0.1"
              local_bind_socket_path  = "/tmp/db.sock"
              local_bind_socket_mode  = "0600"
              mesh_gateway {
                mode = "local"
              }
              config {
                connect_timeout_ms = 5000
              }
            }

            transparent_proxy {
              uid                    = "101"
              outbound_port          = 15001
              exclude_inbound_ports  = ["8080"]
              exclude_outbound_ports = [443]
              exclude_outbound_cidrs = ["10.0.0.0/8"]
              exclude_uids           = ["102"]
              no_dns                 = true
            }

            config {
              protocol = "grpc"
            }
          }
        }

        sidecar_task {
          name           = "envoy"
          driver         = "docker"
          user           = "envoy"
          kill_timeout   = "9s"
          shutdown_delay = "2s"
          kill_signal    = "SIGINT"
          config {
            image = "envoy"
          }
          env {
            A = "1"
          }
          meta {
            b = "2"
          }
          logs {
            max_files = 2
          }
          resources {
            cpu = 100
          }
          volume_mount {
            volume = "v"
          }
          identity {
            name = "mesh"
          }
        }
      }
    }

    service {
      name = "native"
      port = "9002"
      connect {
        native = true
      }
    }
  }

  group "gateways" {
    service {
      name = "gw"
      connect {
        gateway {
          proxy {
            connect_timeout                     = "5s"
            envoy_gateway_bind_tagged_addresses = true
            envoy_gateway_no_default_bind       = true
            envoy_dns_discovery_type            = "STRICT_DNS"
            envoy_gateway_bind_addresses "default" {
              address = "0.0.0.0"
              port    = 8443
            }
            config {
              x = 1
            }
          }

          ingress {
            tls {
              enabled         = true
              tls_min_version = "TLSv1_2"
              tls_max_version = "TLSv1_3"
              cipher_suites   = ["X"]
              sds {
                cluster_name  = "sds"
                cert_resource = "cert"
              }
            }
            listener {
              port     = 8080
              protocol = "http"
              service {
                name                    = "api"
                hosts                   = ["api.example.org"]
                max_connections         = 10
                max_pending_requests    = 20
                max_concurrent_requests = 30
                tls {
                  enabled = true
                }
                request_headers {
                  add {
                    x-a = "1"
                  }
                  set {
                    x-b = "2"
                  }
                  remove = ["x-c"]
                }
                response_headers {
                  remove = ["x-d"]
                }
              }
            }
          }

          terminating {
            service {
              name      = "legacy"
              ca_file   = "/ca"
              cert_file = "/cert"
              key_file  = "/key"
              sni       = "legacy.example.org"
            }
          }

          mesh {}
        }
      }
    }
  }
}
