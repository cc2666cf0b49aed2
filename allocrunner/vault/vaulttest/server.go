// Package vaulttest stands in for Vault in tests: it serves a login with JWTs, tokens, leases, a store of keys and
// values with versions at secret/, one without at kv/, passwords with leases at db/creds/, and certificates at
// pki/issue/. Its answers have the form of Vault 1.21's. No program imports vaulttest.
package vaulttest

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Server stands in for Vault. Its methods may be called from several goroutines.
type Server struct {
	URL string

	mu     sync.Mutex // guards the fields below
	away   bool
	ttl    time.Duration
	max    time.Duration
	tokens map[string]*lease
	leases map[string]*lease // of passwords
	data   map[string]map[string]any
	claims []map[string]any
	roles  []string
	denied map[string]bool
	seen   []string
}

// lease is a token, or a password.
type lease struct {
	token    string
	begun    time.Time
	expires  time.Time
	renewals int
}

// New starts a Vault, which ends with the test. Tokens of logins are good for an hour.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := Unserved()
	server := httptest.NewServer(s)
	s.URL = server.URL
	tb.Cleanup(server.Close)
	return s
}

// Unserved returns a Vault without a network, for clients whose transport it is.
func Unserved() *Server {
	return &Server{URL: "http://vault", ttl: time.Hour, max: 24 * time.Hour, tokens: map[string]*lease{},
		leases: map[string]*lease{}, data: map[string]map[string]any{}, denied: map[string]bool{}}
}

// RoundTrip answers a request without a network.
func (s *Server) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	defer func() {
		if recover() != nil {
			resp, err = nil, errors.New("connection refused")
		}
	}()
	r = r.Clone(r.Context())
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result(), nil
}

// Put writes a secret, below secret/ or kv/.
func (s *Server) Put(path string, data map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data[path] = data
}

// Lives sets how long tokens and passwords live unless they are renewed, and at most.
func (s *Server) Lives(ttl, most time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttl, s.max = ttl, most
}

// Token returns a new token.
func (s *Server) Token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokenLocked()
}

func (s *Server) tokenLocked() string {
	token := "hvs." + uuid.NewString()
	s.tokens[token] = &lease{token: token, begun: time.Now(), expires: time.Now().Add(s.ttl)}
	return token
}

// Revoke ends all tokens.
func (s *Server) Revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

// Good returns how many tokens there are.
func (s *Server) Good() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for token := range s.tokens {
		if s.goodLocked(token) {
			n++
		}
	}
	return n
}

// Deny refuses a path to every token.
func (s *Server) Deny(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied[path] = true
}

// Away closes each connection without an answer, until it is called with false.
func (s *Server) Away(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = is
}

// Logins returns the claims of the logins, and their roles.
func (s *Server) Logins() (claims []map[string]any, roles []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.claims), slices.Clone(s.roles)
}

// Renewals returns how often tokens and passwords have been renewed.
func (s *Server) Renewals() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range []map[string]*lease{s.tokens, s.leases} {
		for _, l := range all {
			n += l.renewals
		}
	}
	return n
}

// Requests returns the method and the path of each request.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *Server) goodLocked(token string) bool {
	l := s.tokens[token]
	return l != nil && time.Now().Before(l.expires)
}

type object = map[string]any

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		panic(http.ErrAbortHandler)
	}
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	s.seen = append(s.seen, r.Method+" "+path)
	status, answer := s.answerLocked(r, path)
	w.WriteHeader(status)
	if answer != nil {
		_ = json.NewEncoder(w).Encode(answer) // the client may have gone away
	}
}

func failed(status int, words ...string) (int, object) {
	return status, object{"errors": append([]string{}, words...)}
}

func (s *Server) answerLocked(r *http.Request, path string) (int, object) {
	if r.Header.Get("X-Vault-Request") != "true" {
		return failed(http.StatusPreconditionFailed, "required header 'X-Vault-Request' missing")
	}
	body := object{}
	if r.ContentLength != 0 {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return failed(http.StatusBadRequest, "error parsing JSON")
		}
	}
	token := r.Header.Get("X-Vault-Token")
	if r.Method == http.MethodPut && path == "auth/jwt-nomad/login" {
		return s.loginLocked(body)
	}
	if !s.goodLocked(token) {
		return failed(http.StatusForbidden, "2 errors occurred:\n\t* permission denied\n\t* invalid token\n\n")
	}
	if s.denied[path] {
		return failed(http.StatusForbidden, "1 error occurred:\n\t* permission denied\n\n")
	}
	l := s.tokens[token]
	switch route := r.Method + " " + path; {
	case route == "PUT auth/token/renew-self":
		s.renewLocked(l)
		return http.StatusOK, object{"auth": authOf(l)}
	case route == "GET auth/token/lookup-self":
		return http.StatusOK, object{"data": object{"ttl": left(l), "creation_ttl": int(s.ttl / time.Second),
			"renewable": true}}
	case route == "PUT auth/token/revoke-self":
		delete(s.tokens, token)
		for id, lent := range s.leases {
			if lent.token == token {
				delete(s.leases, id)
			}
		}
		return http.StatusNoContent, nil
	case route == "PUT sys/leases/renew":
		id, _ := body["lease_id"].(string)
		lent := s.leases[id]
		if lent == nil || !s.goodLocked(lent.token) || time.Now().After(lent.expires) {
			return failed(http.StatusBadRequest, "lease not found")
		}
		s.renewLocked(lent)
		return http.StatusOK, object{"lease_id": id, "lease_duration": left(lent), "renewable": true}
	case strings.HasPrefix(route, "GET sys/internal/ui/mounts/"):
		return mountOf(strings.TrimPrefix(path, "sys/internal/ui/mounts/"))
	case strings.HasPrefix(route, "PUT pki/issue/"):
		return http.StatusOK, object{"request_id": uuid.NewString(), "data": s.issue(body)}
	case strings.HasPrefix(route, "GET db/creds/"):
		id := path + "/" + uuid.NewString()
		s.leases[id] = &lease{token: token, begun: time.Now(), expires: time.Now().Add(s.ttl)}
		return http.StatusOK, object{"request_id": uuid.NewString(), "lease_id": id, "renewable": true,
			"lease_duration": int(s.ttl / time.Second), "data": object{"username": "u", "password": uuid.NewString()}}
	}
	return s.storeLocked(r, path, body)
}

// storeLocked serves the two stores of keys and values.
func (s *Server) storeLocked(r *http.Request, path string, body object) (int, object) {
	name, versions := strings.CutPrefix(path, "secret/data/")
	if versions {
		name = "secret/" + name
	} else if name = path; !strings.HasPrefix(path+"/", "kv/") && !strings.HasPrefix(path, "secret/metadata") {
		return failed(http.StatusNotFound, fmt.Sprintf("no handler for route %q. route entry not found.", path))
	}
	switch r.Method {
	case http.MethodGet:
		data := s.data[name]
		if data == nil {
			return failed(http.StatusNotFound)
		}
		if versions {
			data = object{"data": data, "metadata": object{"version": 1, "deletion_time": ""}}
		}
		return http.StatusOK, object{"request_id": uuid.NewString(), "data": data}
	case http.MethodPut:
		if versions {
			body, _ = body["data"].(object)
		}
		s.data[name] = body
		if versions {
			return http.StatusOK, object{"request_id": uuid.NewString(), "data": object{"version": 1}}
		}
		return http.StatusNoContent, nil
	case "LIST":
		prefix := strings.TrimSuffix(strings.Replace(path, "secret/metadata", "secret", 1), "/") + "/"
		var keys []string
		for name := range s.data {
			if rest, ok := strings.CutPrefix(name, prefix); ok {
				keys = append(keys, rest)
			}
		}
		if keys == nil {
			return failed(http.StatusNotFound)
		}
		slices.Sort(keys)
		return http.StatusOK, object{"data": object{"keys": keys}}
	}
	return failed(http.StatusMethodNotAllowed, "unsupported operation")
}

// issue returns a certificate, which lives as long as a token, from an authority that is made for it.
func (s *Server) issue(body object) object {
	name, _ := body["common_name"].(string)
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		Subject: pkix.Name{CommonName: "test CA"}, NotBefore: time.Now(), NotAfter: time.Now().Add(s.max)}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now(), NotAfter: time.Now().Add(s.ttl)}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	encode := func(kind string, der []byte, err error) string {
		if err != nil {
			panic(err)
		}
		return strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
	}
	signed, err := x509.CreateCertificate(rand.Reader, authority, authority, &key.PublicKey, key)
	ca := encode("CERTIFICATE", signed, err)
	signed, err = x509.CreateCertificate(rand.Reader, leaf, authority, &key.PublicKey, key)
	cert := encode("CERTIFICATE", signed, err)
	der, err := x509.MarshalECPrivateKey(key)
	return object{"certificate": cert, "issuing_ca": ca, "ca_chain": []string{ca}, "private_key_type": "ec",
		"private_key": encode("EC PRIVATE KEY", der, err), "serial_number": "02", "expiration": leaf.NotAfter.Unix()}
}

func (s *Server) loginLocked(body object) (int, object) {
	jwt, _ := body["jwt"].(string)
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return failed(http.StatusBadRequest, "error validating token: malformed")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	claims := object{}
	if err != nil || json.Unmarshal(payload, &claims) != nil || claims["aud"] != "vault.io" {
		return failed(http.StatusBadRequest, "error validating token: invalid audience (aud) claim: audience claim does not "+
			"match any bound audience")
	}
	role, _ := body["role"].(string)
	if cmp.Or(role, "default") == "none" {
		return failed(http.StatusBadRequest, `role "none" could not be found`)
	}
	s.claims, s.roles = append(s.claims, claims), append(s.roles, role)
	return http.StatusOK, object{"auth": authOf(s.tokens[s.tokenLocked()])}
}

func (s *Server) renewLocked(l *lease) {
	l.renewals++
	l.expires = time.Now().Add(s.ttl)
	if last := l.begun.Add(s.max); l.expires.After(last) {
		l.expires = last
	}
}

func left(l *lease) int { return int(time.Until(l.expires).Round(time.Second) / time.Second) }

func authOf(l *lease) object {
	return object{"client_token": l.token, "accessor": "a", "policies": []string{"default"}, "renewable": true,
		"lease_duration": left(l)}
}

// mountOf says that secret/ has versions.
func mountOf(path string) (int, object) {
	top, _, _ := strings.Cut(path, "/")
	switch top {
	case "secret":
		return http.StatusOK, object{"data": object{"path": "secret/", "type": "kv", "options": object{"version": "2"}}}
	case "kv", "db":
		return http.StatusOK, object{"data": object{"path": top + "/", "type": top, "options": object{}}}
	}
	return failed(http.StatusForbidden, "preflight capability check returned 403, please ensure client's policies grant "+
		fmt.Sprintf("access to path %q", path+"/"))
}
