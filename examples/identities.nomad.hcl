# Identities: what a task can prove about itself, to taskapi and to others.
#
#   taskapi run examples/identities.nomad.hcl
#
# Every task has the default identity, which opens its own socket. Further ones, each with its audience, are for other services;
# those can check them against the public keys of the key ring. Tokens with a ttl are renewed in place before they expire.

job "identities" {
  type = "batch"

  group "show" {
    task "claims" {
      driver = "raw_exec"

      # The default identity: in $NOMAD_SECRETS_DIR/nomad_token, and in $NOMAD_TOKEN.
      identity {
        env  = true
        file = true
      }

      # A named one, in $NOMAD_SECRETS_DIR/nomad_bank.jwt. When it is renewed the task gets a SIGHUP.
      identity {
        name          = "bank"
        aud           = ["bank.example.org"]
        ttl           = "1h"
        file          = true
        change_mode   = "signal"
        change_signal = "SIGHUP"
      }

      # A third, in $NOMAD_TOKEN_shop and at a path of our own in the task's folder.
      identity {
        name     = "shop"
        aud      = ["shop.example.org", "stock.example.org"]
        ttl      = "10m"
        env      = true
        file     = true
        filepath = "local/shop.jwt"
      }

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          for file in "$NOMAD_SECRETS_DIR/nomad_token" "$NOMAD_SECRETS_DIR/nomad_bank.jwt" "$NOMAD_TASK_DIR/shop.jwt"; do
            test -s "$file" || exit 1
            echo "$file: $(wc -c < "$file") bytes"
          done
          test -n "$NOMAD_TOKEN" && test -n "$NOMAD_TOKEN_shop"
          EOF
        ]
      }
    }
  }
}
