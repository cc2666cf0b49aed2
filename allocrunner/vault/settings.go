// Package vault gives tasks with a vault block a token of Vault, or of OpenBao, and reads and follows secrets for their
// templates. A token comes from a login with the task's workload identity, as in Nomad since 1.7, and is renewed and
// replaced in time. Or the token comes from a file, which somebody else keeps up to date. The package promises that no
// token and no secret gets into logs, events or the saved state, and that no running task ends because Vault is away.
package vault

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"taskapi/internal/filehead"
	"taskapi/internal/tokenfile"
)

// Settings say how Vault is reached, and hold no secret. The zero value means that there is no Vault.
type Settings struct {
	Address   string // a URL of http or https
	TokenFile string // with the token of all tasks; empty for a login with the identity of each
	Role      string // of a login whose vault block names none; empty for the auth method's own
	AuthPath  string // of the auth method for JWTs; empty for DefaultAuthPath
	Audience  string // of the identities; empty for DefaultAudience
	Namespace string
	CAFile    string
}

// The values of Nomad's documents.
const (
	DefaultAuthPath = "jwt-nomad"
	DefaultAudience = "vault.io"
)

// Configured reports whether there is a Vault.
func (s Settings) Configured() bool { return s.Address != "" }

// Check refuses settings that are wrong whatever the files contain.
func (s Settings) Check() error {
	switch u, err := url.Parse(s.Address); {
	case s == Settings{}:
		return nil
	case !s.Configured():
		return errors.New("there is no address of Vault: set vault.address, such as https://vault.example:8200")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("vault.address must be a URL, such as https://vault.example:8200")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("vault.address must have no password and no query")
	}
	if s.TokenFile != "" && (s.Role != "" || s.AuthPath != "" || s.Audience != "") {
		return errors.New("vault.token_file excludes vault.role, vault.auth_path and vault.audience, " +
			"which are for a login with the identity of each task")
	}
	return nil
}

// TryFiles reads every file that the settings name.
func (s Settings) TryFiles() error {
	if !s.Configured() {
		return nil
	}
	if _, err := s.transport(); err != nil {
		return err
	}
	if s.TokenFile == "" {
		return nil
	}
	_, err := readToken(s.TokenFile)
	return err
}

// maxFile bounds a file of certificates, in bytes.
const maxFile = 1 << 20

// readToken returns the token in a file of the operator's.
func readToken(path string) (string, error) {
	token, err := tokenfile.Read(path)
	if err != nil {
		return "", fmt.Errorf("the token for Vault: %w", err)
	}
	return token, nil
}

func (s Settings) transport() (*http.Transport, error) {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 2, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true, TLSHandshakeTimeout: requestTimeout}
	if s.CAFile == "" {
		return t, nil
	}
	text, err := filehead.Read(s.CAFile, maxFile)
	if err != nil {
		return nil, fmt.Errorf("the certificates for Vault: %w", err)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("the certificates for Vault: %s has no certificate in PEM", s.CAFile)
	}
	return t, nil
}

func (s Settings) authPath() string {
	return strings.Trim(cmp.Or(s.AuthPath, DefaultAuthPath), "/")
}
