// Package ui is a page for the browser that shows the allocations of the user who starts it, and acts on them. It asks
// each allocation's operator socket, as the commands do, so it has no right that this user lacks. It promises to answer
// only this user's processes, only after a link that works once, and only requests of its own pages; and that names,
// messages and output reach the browser only as text.
package ui

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/httpserve"
)

// The bounds of the page's server.
const (
	MaxConns    = 64
	maxBody     = 4 << 10
	requestTime = 10 * time.Second
	answerTime  = time.Minute // for an answer, or for a part of followed output
	linkTime    = time.Minute
	sessionTime = 12 * time.Hour
)

//go:embed static/*.*
var static embed.FS

// policy lets a page load its own style, script, icon and data, send forms to itself, and be framed by nobody.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Config says what is shown and where.
type Config struct {
	Environment base.Environment
	DataDir     string // as --data-dir
	Address     httpserve.Address
	Listeners   []*httpserve.Listener // on Address: see Listen
	Users       []int                 // who may connect over TCP, beside root
}

// Listen listens on an address, and on the other loopback address with the same port: browsers look for the page at
// both, and would take another user's server there for the page.
func Listen(a httpserve.Address) ([]*httpserve.Listener, error) {
	for tries := 20; ; tries-- {
		first, err := httpserve.Listen(a, MaxConns)
		other, hasOther := map[string]netip.Addr{
			"127.0.0.1": netip.IPv6Loopback(), "::1": netip.AddrFrom4([4]byte{127, 0, 0, 1}),
		}[a.TCP.Addr().String()]
		if err != nil || !hasOther {
			return []*httpserve.Listener{first}, err
		}
		port := first.Addr().(*net.TCPAddr).AddrPort().Port()
		second, err := httpserve.Listen(httpserve.Address{TCP: netip.AddrPortFrom(other, port)}, MaxConns)
		switch {
		case err == nil:
			return []*httpserve.Listener{first, second}, nil
		case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAFNOSUPPORT): // nobody can listen there
			return []*httpserve.Listener{first}, nil
		}
		if err := errors.Join(err, first.Close()); a.TCP.Port() != 0 || tries == 0 { // else another port may be free
			return nil, err
		}
	}
}

// Server answers the browser.
type Server struct {
	Config
	ctx     context.Context // of the server and of its actions
	name    string          // of the cookie and, below localhost, of the host: nobody else knows it, see Link
	mux     *http.ServeMux
	actions sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	links    secrets    // the latest one
	sessions secrets
	uses     map[string][]use  // by allocation
	notices  map[string]notice // by allocation
}

// secrets have the end of each secret by its hash, so that the time of a look-up says nothing of the secrets.
type secrets map[[sha256.Size]byte]time.Time

func (s secrets) add(life time.Duration) (secret string) {
	secret = rand.Text()
	s[sha256.Sum256([]byte(secret))] = time.Now().Add(life)
	return secret
}

// New makes a server that ends with ctx.
func New(ctx context.Context, c Config) *Server {
	s := &Server{
		Config: c, ctx: ctx, name: "taskapi-" + strings.ToLower(rand.Text())[:16], mux: http.NewServeMux(),
		sessions: secrets{}, uses: map[string][]use{}, notices: map[string]notice{},
	}
	s.mux.HandleFunc("GET /{$}", s.list)
	s.mux.HandleFunc("GET /alloc/{id}", s.onTarget(s.show))
	s.mux.HandleFunc("GET /alloc/{id}/output", s.onTarget(s.follow))
	s.mux.HandleFunc("GET /alloc/{id}/{action}", s.onTarget(s.act))
	s.mux.HandleFunc("POST /alloc/{id}/{action}", s.onTarget(s.act))
	s.mux.Handle("GET /static/{name}", http.FileServerFS(static))
	return s
}

// Serve answers until the server's context ends.
func (s *Server) Serve() error {
	defer s.actions.Wait()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	var all sync.WaitGroup
	errs := make([]error, len(s.Listeners))
	for i, l := range s.Listeners {
		all.Go(func() {
			defer cancel()
			errs[i] = l.Serve(ctx, &http.Server{
				Handler: s, ReadTimeout: requestTime, WriteTimeout: answerTime,
				BaseContext: func(net.Listener) context.Context { return ctx },
			}, base.NewLogger(false, s.Environment))
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Link returns a link that begins a session if it is opened within linkTime, once. Cookies don't distinguish ports, so
// the link has a host name that no server on another port of this machine knows. Browsers take every name below
// localhost for the loopback address.
func (s *Server) Link() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links = secrets{}
	at := s.name + ".localhost:8080" // of a tunnel to the socket
	if s.Address.Socket == "" {
		at = s.Listeners[0].Addr().String()
		if ip := s.Address.TCP.Addr().String(); ip == "127.0.0.1" || ip == "::1" {
			at = s.name + ".localhost" + strings.TrimPrefix(strings.TrimPrefix(at, "["+ip+"]"), ip)
		}
	}
	return "http://" + at + "/open?once=" + s.links.add(linkTime)
}

// ServeHTTP answers a request, if everything about it is as it should be.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	maps.Copy(w.Header(), http.Header{
		"Content-Security-Policy": {policy}, "Cross-Origin-Opener-Policy": {"same-origin"}, "Cache-Control": {"no-store"},
		"Cross-Origin-Resource-Policy": {"same-origin"}, "Referrer-Policy": {"no-referrer"}, "X-Frame-Options": {"DENY"},
		"X-Content-Type-Options": {"nosniff"},
	})
	switch end := s.session(r); {
	case s.Address.Socket == "" && !httpserve.OfUser(r, s.Users): // a socket's mode keeps others out
		http.Error(w, "this page is for the processes of the user who started it", http.StatusForbidden)
	case strings.Split(r.Host, ":")[0] != s.name+".localhost" && !httpserve.NamesThisMachine(r.Host): // DNS rebinding
		http.Error(w, "this page has another name: open the link that taskapi ui printed", http.StatusMisdirectedRequest)
	case r.URL.Path == "/open":
		s.open(w, r)
	case !ofThisPage(r):
		http.Error(w, "another page has sent this request", http.StatusForbidden)
	case !time.Now().Before(end):
		http.Error(w, "no session, or it has ended: press Enter where taskapi ui runs, and open the new link",
			http.StatusUnauthorized)
	default:
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		ctx, cancel := context.WithDeadline(r.Context(), end)
		defer cancel()
		s.mux.ServeHTTP(w, r.WithContext(ctx))
	}
}

// ofThisPage reports whether the user, or a page of this server, has sent a request, as far as the browser says. A
// request that changes something must come from a page.
func ofThisPage(r *http.Request) bool {
	reads, site := r.Method == http.MethodGet || r.Method == http.MethodHead, r.Header.Get("Sec-Fetch-Site")
	return site == "same-origin" || reads && (site == "none" || site == "") ||
		site == "" && r.Header.Get("Origin") == "http://"+r.Host
}

// session returns when the request's session ends; zero without one.
func (s *Server) session(r *http.Request) (end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range r.CookiesNamed(s.name) {
		if found, ok := s.sessions[sha256.Sum256([]byte(c.Value))]; ok {
			end = found
		}
	}
	return end
}

// open exchanges a link's secret for a session. The answer is no redirect: after a link in another program, a browser
// would follow a redirect without the cookie.
func (s *Server) open(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.Header.Get("Sec-Purpose") != "" { // a look ahead must not use the link up
		http.Error(w, "a link is opened with GET", http.StatusMethodNotAllowed)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	link := sha256.Sum256([]byte(r.URL.Query().Get("once")))
	if !time.Now().Before(s.links[link]) {
		http.Error(w, "this link was opened before, or is older than a minute: press Enter where taskapi ui runs, and open "+
			"the new one", http.StatusForbidden)
		return
	}
	delete(s.links, link)
	http.SetCookie(w, &http.Cookie{Name: s.name, Value: s.sessions.add(sessionTime), Path: "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode})
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, `<!doctype html><html lang="en"><title>taskapi</title><link rel="icon" `+
		`href="/static/icon.svg"><meta http-equiv="refresh" content="0; url=/"><a href="/">Go on to the allocations</a>`)
}
