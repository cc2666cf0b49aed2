package main

import (
	"bytes"
	"crypto/tls"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/vault/vaulttest"
	"taskapi/internal/must"
)

// vaultJob says the secrets and the token that it sees.
const vaultJob = `
job "templates" {
  group "g" {
    task "main" {
      driver = "raw_exec"
      vault {
        role          = "reader"
        change_mode   = "signal"
        change_signal = "SIGUSR1"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          token() { test "$(cat secrets/vault_token)" = "$VAULT_TOKEN" && echo same; }
          say() { echo "$1 $(cat local/secret) $(token)" >> local/said; }
          trap 'say hup' HUP
          trap 'say usr1' USR1
          say up
          while :; do sleep 0.05; done
        EOT
        ]
      }
      template {
        destination   = "local/secret"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        splay         = "0s"
        data          = <<-EOT
          {{- with secret "secret/app" }}{{ .Data.data.password }}{{ end -}}
        EOT
      }
      template {
        destination = "secrets/cert.pem"
        data        = <<-EOT
          {{ with pkiCert "pki/issue/web" "common_name=a.example" }}{{ .Cert }}{{ .Key }}{{ .CA }}{{ end }}
        EOT
      }
    }
  }
}
`

// TestVault: a task gets a token of Vault for its identity and waits for a secret. A taskapi that is killed and started
// again keeps the token and the certificate, and renders once what has changed meanwhile. The end revokes the token.
// No secret and no token is in the output or in a file that is not the task's own.
func TestVault(t *testing.T) {
	t.Parallel()
	const password = "a-secret-of-vault"
	server := vaulttest.New(t)
	dir := shortDir(t)
	file := jobFile(t, vaultJob)
	start := func() taskapiProcess { return startProcess(t, dir, file, "-o", "vault.address="+server.URL) }
	task := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "main")
	said := func() string {
		text, _ := os.ReadFile(filepath.Join(task, "local", "said"))
		return string(text)
	}
	first := start()
	until(t, first, "the task waits", func() bool {
		return strings.Contains(first.out.String(), "Missing: vault.read(secret/app)")
	})
	server.Put("secret/app", map[string]any{"password": password + "1"})
	want := "up " + password + "1 same\n"
	until(t, first, "the task runs", func() bool { return said() == want })
	kill(t, first)
	server.Put("secret/app", map[string]any{"password": password + "2"})

	second := start()
	want += "hup " + password + "2 same\n"
	until(t, second, "the secret has changed meanwhile", func() bool { return said() == want })
	kill(t, second)
	token := must.Read(t, filepath.Join(task, "secrets", "vault_token"))
	server.Revoke()

	third := start()
	want += "usr1 " + password + "2 \n"
	until(t, third, "there is another token", func() bool { return said() == want })
	other := must.Read(t, filepath.Join(task, "secrets", "vault_token"))
	must.OK(t, third.Process.Signal(os.Interrupt))
	_ = third.Wait()
	if said() != want || server.Good() != 0 {
		t.Errorf("it said %q, want %q; %d tokens are good after the end", said(), want, server.Good())
	}
	if claims, _ := server.Logins(); len(claims) != 2 || claims[0]["nomad_task"] != "main" ||
		!strings.HasSuffix(claims[0]["sub"].(string), ":main:vault_default") || claims[0]["vault_role"] != "reader" {
		t.Errorf("it logged in as %v", claims)
	}
	issued := slices.DeleteFunc(server.Requests(), func(r string) bool { return r != "PUT pki/issue/web" })
	certificate := must.Read(t, filepath.Join(task, "secrets", "cert.pem"))
	if _, err := tls.X509KeyPair(certificate, certificate); err != nil || len(issued) != 1 {
		t.Errorf("%d certificates were issued; the file has %s: %v", len(issued), certificate, err)
	}
	_, key, _ := strings.Cut(string(certificate), "PRIVATE KEY-----\n")
	secrets := []string{password, string(token), string(other), key[:60]}
	all := first.out.String() + second.out.String() + third.out.String()
	for _, secret := range secrets {
		if strings.Contains(all, secret) {
			t.Errorf("a secret is in the output:\n%s", all)
		}
	}
	must.OK(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.HasPrefix(path, task+"/") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, secret := range secrets {
			if bytes.Contains(content, []byte(secret)) {
				t.Errorf("a secret is in %s", path)
			}
		}
		return err
	}))
}
