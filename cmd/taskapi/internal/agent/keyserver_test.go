package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

// serveKeys serves the keys of a new ring until the test ends.
func serveKeys(t *testing.T, config KeyServerConfig) (*KeyServer, *identity.Keyring) {
	t.Helper()
	ring := identitytest.Keyring(t)
	config.Keyring, config.Logger = ring, slog.New(slog.DiscardHandler)
	if config.Listen == "" {
		config.Listen = "127.0.0.1:0"
	}
	server := must.Get(ListenKeys(config))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); serving.Wait() })
	return server, ring
}

// answer is what a server says to a request.
type answer struct {
	status int
	body   string
	header http.Header
}

func askKeys(t *testing.T, method, url, host string) answer {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, url, nil))(t)
	r.Host = host
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp := must.Get(client.Do(r))(t)
	defer resp.Body.Close()
	body := must.Get(io.ReadAll(resp.Body))(t)
	return answer{resp.StatusCode, string(body), resp.Header}
}

// TestKeyServer: the two documents are there, they are those of the ring as it is now, and nothing else answers.
func TestKeyServer(t *testing.T) {
	server, ring := serveKeys(t, KeyServerConfig{})
	base := server.URL()
	keys := func() []string {
		t.Helper()
		got := askKeys(t, "GET", base+"/.well-known/jwks.json", "")
		set, err := identity.ParseJWKS([]byte(got.body)) // which refuses one that holds private material
		if err != nil || got.status != 200 || got.header.Get("Content-Type") != "application/json" ||
			got.header.Get("Cache-Control") != "no-cache" {
			t.Fatalf("%+v: %v", got, err)
		}
		return set.IDs()
	}
	first := ring.Active().ID
	if got := keys(); len(got) != 1 || got[0] != first {
		t.Errorf("keys %v", got)
	}
	identitytest.Rotate(t, ring)
	if got := keys(); len(got) != 2 {
		t.Errorf("after a rotation: keys %v", got)
	}
	must.OK(t, ring.Remove(first))
	if got := keys(); len(got) != 1 || got[0] == first {
		t.Errorf("after a removal: keys %v", got)
	}
	var openID struct {
		Issuer string   `json:"issuer"`
		JWKS   string   `json:"jwks_uri"`
		Algs   []string `json:"id_token_signing_alg_values_supported"`
	}
	discovery := askKeys(t, "GET", base+"/.well-known/openid-configuration", "")
	if err := json.Unmarshal([]byte(discovery.body), &openID); err != nil || openID.Issuer != base ||
		openID.JWKS != base+"/.well-known/jwks.json" || fmt.Sprint(openID.Algs) != "[EdDSA]" {
		t.Errorf("%+v: %v", discovery, err)
	}
	for _, test := range []struct {
		method, path, host string
		status             int
	}{
		{"HEAD", "/.well-known/jwks.json", "", 200},
		{"POST", "/.well-known/jwks.json", "", 405},
		{"DELETE", "/.well-known/openid-configuration", "", 405},
		{"OPTIONS", "/.well-known/jwks.json", "", 405},
		{"GET", "/", "", 404}, {"GET", "/v1/allocations", "", 404}, {"GET", "/.well-known/", "", 404},
		{"GET", "/.well-known/jwks.json/", "", 404},
		{"GET", "/.well-known/../.well-known/jwks.json", "", 404}, {"GET", "/.well-known%2fjwks.json", "", 404},
		{"GET", "/keyring/keys.sealed", "", 404},
		{"GET", "/.well-known/jwks.json", "localhost:1", 200},
		{"GET", "/.well-known/jwks.json", "LocalHost", 200},
		{"GET", "/.well-known/jwks.json", "[::1]:80", 200},
		{"GET", "/.well-known/jwks.json", "rebound.example", 421},
		{"GET", "/.well-known/jwks.json", "127.0.0.1.evil.example:80", 421},
		{"GET", "/", "rebound.example", 421},
	} {
		if got := askKeys(t, test.method, base+test.path, test.host); got.status != test.status {
			t.Errorf("%s %s of %q: %d, want %d", test.method, test.path, test.host, got.status, test.status)
		}
	}
}

// TestARotationByAnotherProcess is in the next answer, also when nothing has announced it yet.
func TestARotationByAnotherProcess(t *testing.T) {
	config := identity.KeyringConfig{Dir: filepath.Join(t.TempDir(), "keyring")}
	var rings [2]*identity.Keyring
	for i := range rings {
		var err error
		if rings[i], err = identity.OpenKeyring(config); err != nil {
			t.Fatal(err)
		}
	}
	server := must.Get(ListenKeys(KeyServerConfig{Keyring: rings[0], Listen: "127.0.0.1:0"}))(t)
	defer server.Close()
	identitytest.Rotate(t, rings[1])
	w := httptest.NewRecorder()
	server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, server.URL()+keySetPath, http.NoBody))
	if set, err := identity.ParseJWKS(w.Body.Bytes()); err != nil || len(set.IDs()) != 2 {
		t.Errorf("%d %s: %v, want two keys", w.Code, w.Body, err)
	}
}

// TestKeyServerBehindAProxy names the issuer that was given, and answers below its path and to its name.
func TestKeyServerBehindAProxy(t *testing.T) {
	server, _ := serveKeys(t, KeyServerConfig{Issuer: "https://ids.example/taskapi"})
	got := askKeys(t, "GET", server.URL()+"/taskapi/.well-known/openid-configuration", "ids.example")
	if got.status != 200 || !strings.Contains(got.body, `"jwks_uri":"https://ids.example/taskapi/.well-known/jwks.json"`) {
		t.Errorf("%+v", got)
	}
}

// TestKeysOverASocket: another taskapi trusts the keys that it gets over a Unix socket, and follows a rotation, as long
// as root or its own user serves them.
func TestKeysOverASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.sock")
	server, ring := serveKeys(t, KeyServerConfig{Listen: "unix://" + path})
	if server.Issuer() != "" {
		t.Errorf("issuer %q", server.Issuer())
	}
	is := must.Get(openIssuer("unix://"+path+",iss=other", slog.New(slog.DiscardHandler)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	loaded := make(chan struct{})
	following.Go(func() {
		is.follow(ctx, slog.New(onMessage{slog.DiscardHandler, "keys reloaded", func() { close(loaded) }}))
	})
	<-loaded
	if keys := is.Keys.Keys(); keys.Len() != 1 || !slices.Contains(keys.IDs(), ring.Active().ID) {
		t.Errorf("keys %v", keys.IDs())
	}
	if _, err := openIssuer("unix://relative", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a relative path is taken")
	}
}

// onMessage is a log that calls a function at its first record with a message.
type onMessage struct {
	slog.Handler
	message string
	do      func()
}

func (h onMessage) Enabled(context.Context, slog.Level) bool { return true }
func (h onMessage) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h onMessage) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.do()
	}
	return nil
}

// TestKeysOfAnotherUser are not taken from a socket: everybody can listen where they may write.
func TestKeysOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can listen as another user")
	}
	path := filepath.Join(t.TempDir(), "keys.sock")
	var fd int
	var err error
	var listening sync.WaitGroup
	listening.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		if err = unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 { // this thread alone
			err = errno
			return
		}
		err = unix.Listen(fd, 1)
	})
	listening.Wait()
	must.OK(t, err)
	defer unix.Close(fd)
	if conn, err := dialTrusted(t.Context(), path); err == nil ||
		!strings.Contains(err.Error(), "user 65534 listens there") {
		t.Errorf("%v, %v", conn, err)
	}
}

func TestKeyServerAddresses(t *testing.T) {
	for _, test := range []struct {
		config KeyServerConfig
		words  string
	}{
		{KeyServerConfig{Listen: "0.0.0.0:0"}, "other machines may reach this address: give 127.0.0.1 or ::1, or --remote"},
		{KeyServerConfig{Listen: "[::]:0"}, "other machines may reach this address"},
		{KeyServerConfig{Listen: "0.0.0.0:0", Remote: true}, "give --issuer with the URL that they use"},
		{KeyServerConfig{Listen: ":0"}, "no address with a port"},
		{KeyServerConfig{Listen: "example.com:80"}, "no address with a port"},
		{KeyServerConfig{Listen: "127.0.0.1:0", Issuer: "nothing"}, "is no URL"},
		{KeyServerConfig{Listen: "unix://relative"}, "no absolute path"},
	} {
		test.config.Logger = slog.New(slog.DiscardHandler)
		if server, err := ListenKeys(test.config); err == nil || !strings.Contains(err.Error(), test.words) {
			t.Errorf("%+v: %v, %v", test.config, server, err)
		}
	}
	server := must.Get(ListenKeys(KeyServerConfig{
		Listen: "0.0.0.0:0", Remote: true, Issuer: "http://keys.example", Logger: slog.New(slog.DiscardHandler),
	}))(t)
	server.Close()
}
