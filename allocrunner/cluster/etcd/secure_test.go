package etcd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/etcd"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/cluster/etcd/etcdtest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// authority makes certificates in a directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.fill(t)
	return a
}

// fill makes the authority's own certificate, and those of a server and a client.
func (a *authority) fill(t *testing.T) {
	t.Helper()
	a.cert, a.key = a.make(t, "ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
	a.make(t, "server", &x509.Certificate{IPAddresses: []net.IP{etcdtest.Host},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	a.make(t, "client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// make writes NAME.pem and NAME.key.
func (a *authority) make(t *testing.T, name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer))(t)
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		must.OK(t, os.WriteFile(a.path(file), pem.EncodeToMemory(block), 0o600))
	}
	c, err = x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c, key
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }

// openWith opens the store that settings name.
func openWith(t *testing.T, s etcd.Settings) *etcd.Store {
	t.Helper()
	must.OK(t, s.TryFiles())
	store := etcd.New(s.Config(func(_ []byte, purpose string) (cluster.Sealer, error) {
		return etcdtest.Sealer(purpose), nil
	}))
	t.Cleanup(func() { store.Close() })
	return store
}

func keyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cluster.key")
	must.OK(t, os.WriteFile(path, make([]byte, 32), 0o600))
	return path
}

// TestTLS: a server and a client prove who they are by certificates. Without them nothing is read.
func TestTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	node := etcdtest.Start(t, 1, "--cert-file", a.path("server.pem"), "--key-file", a.path("server.key"),
		"--trusted-ca-file", a.path("ca.pem"), "--client-cert-auth")[0]
	s := etcd.Settings{Address: "etcds://" + node.Client, KeyFile: keyFile(t), TLSCAFile: a.path("ca.pem"),
		TLSCertFile: a.path("client.pem"), TLSKeyFile: a.path("client.key")}
	store := openWith(t, s)
	i := clustertest.Put(t, store, "k", "v")
	clustertest.Hold(t, store, "alloc")
	if page := clustertest.List(t, store, cluster.Span{}); page.Index < i || len(page.Entries) != 1 {
		t.Errorf("got %+v", page)
	}
	for what, change := range map[string]func(*etcd.Settings){
		"without a client certificate":   func(s *etcd.Settings) { s.TLSCertFile, s.TLSKeyFile = "", "" },
		"without the server's authority": func(s *etcd.Settings) { s.TLSCAFile = "" },
		"with another host's certificate": func(s *etcd.Settings) {
			s.Address = "etcds://" + etcdtest.Through(t, node).Client
		},
	} {
		wrong := s
		change(&wrong)
		if _, _, err := openWith(t, wrong).Get(t.Context(), "k"); !errors.Is(err, cluster.ErrUnavailable) ||
			!strings.Contains(err.Error(), "tls") {
			t.Errorf("%s: %v", what, err)
		}
	}
	renewed(t, a, node, store)
}

// renewed: a store goes on when all certificates are replaced by those of another authority.
func renewed(t *testing.T, a *authority, node *etcdtest.Node, store *etcd.Store) {
	t.Helper()
	node.Proc.Kill()
	a.cert, a.key = nil, nil
	a.fill(t)
	node.Run(t)
	until(t, "nothing is written with other certificates", func() bool {
		_, err := store.Commit(t.Context(), clustertest.Txn(clustertest.Set("k", "again")))
		return err == nil
	})
}

// TestUser: etcd knows the caller by a password. Its rights count, and an old token is replaced.
func TestUser(t *testing.T) {
	t.Parallel()
	node := etcdtest.Start(t, 1, "--auth-token-ttl", "1")[0]
	ask := func(path, body string) {
		t.Helper()
		r, err := http.Post("http://"+node.Client+"/v3/auth/"+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", path, r.Status)
		}
	}
	ask("user/add", `{"name":"root","password":"top"}`)
	ask("user/grant", `{"user":"root","role":"root"}`)
	ask("user/add", `{"name":"machine","password":"secret"}`)
	ask("role/add", `{"name":"machines"}`)
	// taskapi/ to taskapi0, the end of that prefix
	ask("role/grant", `{"name":"machines","perm":{"permType":"READWRITE","key":"dGFza2FwaS8=",`+
		`"range_end":"dGFza2FwaTA="}}`)
	ask("user/grant", `{"user":"machine","role":"machines"}`)
	ask("enable", `{}`)
	http.DefaultClient.CloseIdleConnections()
	password := filepath.Join(t.TempDir(), "password")
	must.OK(t, os.WriteFile(password, []byte("secret\n"), 0o600))
	s := etcd.Settings{Address: "etcd://" + node.Client, KeyFile: keyFile(t), User: "machine", PasswordFile: password}
	store := openWith(t, s)
	for begin := time.Now(); time.Since(begin) < 3*time.Second; { // longer than a token is good
		clustertest.Put(t, store, "k", "v")
		clustertest.Get(t, store, "k")
		time.Sleep(100 * time.Millisecond) // else the token would not age
	}
	clustertest.Hold(t, store, "alloc")
	watchWithOldToken(t, node, s)
	wrong := s
	wrong.Address += "/other"
	_, _, err := openWith(t, wrong).Get(t.Context(), "k")
	wantRefused(t, "another prefix", err)
	must.OK(t, os.WriteFile(password, []byte("wrong\n"), 0o600))
	_, _, err = openWith(t, s).Get(t.Context(), "k")
	wantRefused(t, "a wrong password", err)
	_, _, err = openWith(t, etcd.Settings{Address: s.Address, KeyFile: s.KeyFile}).Get(t.Context(), "k")
	wantRefused(t, "no user", err)
}

// watchWithOldToken: etcd forgets the tokens of a user whose password is set. A watch with such a token ends, and the
// next one has another token.
func watchWithOldToken(t *testing.T, node *etcdtest.Node, s etcd.Settings) {
	t.Helper()
	config := must.Get(s.Config(nil).Client())(t)
	c := client.New(config)
	t.Cleanup(c.Close)
	first := func(what string) client.WatchResponse {
		t.Helper()
		w, err := c.Watch(t.Context(), "taskapi/", 1)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer w.Close(false)
		r, err := w.Next()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return r
	}
	if r := first("a watch"); len(r.Events) == 0 {
		t.Error("the watch hears of nothing")
	}
	setPassword(t, node, "machine", "secret")
	if r := first("a watch with an old token"); !r.Canceled {
		t.Errorf("the watch with an old token hears of %d changes", len(r.Events))
	}
	if r := first("the next watch"); len(r.Events) == 0 {
		t.Error("the next watch hears of nothing")
	}
}

func setPassword(t *testing.T, node *etcdtest.Node, user, password string) {
	t.Helper()
	token := ""
	for _, step := range [][2]string{{"authenticate", `{"name":"root","password":"top"}`},
		{"user/changepw", `{"name":"` + user + `","password":"` + password + `"}`}} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+node.Client+"/v3/auth/"+step[0], strings.NewReader(step[1]))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", token)
		}
		r := must.Get(http.DefaultClient.Do(request))(t)
		var answer struct{ Token string }
		err = json.NewDecoder(r.Body).Decode(&answer)
		r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatal(step[0], r.Status, err)
		}
		token = answer.Token
	}
	http.DefaultClient.CloseIdleConnections()
}

func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	same.Says(t, cluster.ErrUnavailable, "check cluster.user", err, what)
}
