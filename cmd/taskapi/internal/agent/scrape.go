package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"taskapi/handlers"
)

// MetricsFlag is the flag of Settings.MetricsListen.
const MetricsFlag = "metrics-listen"

// Bounds of the listener for measurements, which anybody on the machine can connect to.
const (
	maxScrapers    = 16 // connections at a time; more are closed
	maxScrapeHead  = 8 << 10
	scrapeHeadTime = 5 * time.Second
	scrapeTime     = 10 * time.Second // of one request with its answer
	scrapeIdleTime = 90 * time.Second // more than the usual time between two scrapes
	scrapeEndTime  = 3 * time.Second  // for what is being answered at the end
)

// relistenPause is the time between two attempts to have an address that something else has.
const relistenPause = 5 * time.Second

// metricsAddress reads the address to listen on for scrapes.
func metricsAddress(text string) (netip.AddrPort, error) { return listenAddress(MetricsFlag, text) }

// listenAddress reads an address to listen on, "127.0.0.1:9100". The host must be written out: an IP address, or localhost, which is 127.0.0.1.
func listenAddress(flag, text string) (netip.AddrPort, error) {
	if host, port, ok := strings.Cut(text, ":"); ok && strings.EqualFold(host, "localhost") {
		text = "127.0.0.1:" + port
	}
	address, err := netip.ParseAddrPort(text)
	if err != nil {
		return address, fmt.Errorf("--%s %q is no address with a port: give one such as 127.0.0.1:9100 or [::1]:9100; 0.0.0.0:9100 lets every machine ask that reaches this one",
			flag, text)
	}
	return address, nil
}

// scraper serves the measurements of the allocation at work over TCP, without a token, and nothing else.
type scraper struct {
	address netip.AddrPort
	logger  *slog.Logger
	say     func(url string) // called when it serves
	at      atomic.Pointer[wiring]
	ready   chan struct{} // closed when there is something to measure
	begin   func()        // closes ready, once
	server  *http.Server
	end     context.CancelFunc
	running sync.WaitGroup
}

// startScraper listens on the address of the settings; it returns nil when there is none. When the address can't be had, that is an error for a new
// allocation, and nothing has been started. One that is resumed goes on, and the address is tried again: its tasks are not to be left alone.
func startScraper(address string, resumed bool, logger *slog.Logger, say func(url string)) (*scraper, error) {
	if address == "" {
		return nil, nil
	}
	parsed, err := metricsAddress(address)
	if err != nil {
		return nil, invalid(err)
	}
	s := &scraper{address: parsed, logger: logger, say: say, ready: make(chan struct{})}
	s.begin = sync.OnceFunc(func() { close(s.ready) })
	s.server = &http.Server{
		Handler:                      handlers.Scrape(s.measure, parsed.Addr().IsLoopback()),
		MaxHeaderBytes:               maxScrapeHead,
		ReadHeaderTimeout:            scrapeHeadTime,
		ReadTimeout:                  scrapeTime,
		WriteTimeout:                 scrapeTime,
		IdleTimeout:                  scrapeIdleTime,
		DisableGeneralOptionsHandler: true, // OPTIONS * is no route
		ErrorLog:                     slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	listener, err := s.listen()
	if err != nil && !resumed {
		return nil, invalid(err)
	}
	if err != nil {
		logger.Warn("nobody can scrape the metrics until the address is free; it is tried again", "error", err)
	}
	if !parsed.Addr().IsLoopback() {
		logger.Warn("everybody who reaches this address reads the metrics: the names of job, tasks and checks, and what they use", "address", parsed)
	}
	ctx, end := context.WithCancel(context.Background())
	s.end = end
	s.running.Go(func() { s.run(ctx, listener) })
	return s, nil
}

// listen takes the address.
func (s *scraper) listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", s.address.String())
	if err == nil {
		return newFewConns(listener, maxScrapers), nil
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("--%s %s: another program listens there; choose another port, or 0 for any", MetricsFlag, s.address)
	}
	if cause, ok := errors.AsType[syscall.Errno](err); ok {
		err = cause
	}
	return nil, fmt.Errorf("--%s %s: %w", MetricsFlag, s.address, err)
}

// run serves until the end, once it has the address.
func (s *scraper) run(ctx context.Context, listener net.Listener) {
	for listener == nil {
		select {
		case <-time.After(relistenPause):
		case <-ctx.Done():
			return
		}
		listener, _ = s.listen() // why it fails has been said
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		listener.Close()
		return
	}
	s.say("http://" + listener.Addr().String() + "/metrics")
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.logger.Warn("the metrics can't be scraped any more", "error", err)
		}
	})
	<-ctx.Done()
	within, cancel := context.WithTimeout(context.Background(), scrapeEndTime)
	defer cancel()
	if s.server.Shutdown(within) != nil {
		_ = s.server.Close() // who still reads has had its time
	}
}

// measure returns what the allocation at work measures.
func (s *scraper) measure(ctx context.Context) []handlers.Metric {
	return s.at.Load().measure(ctx)
}

// serve has the measurements be those of a wiring from now on. A nil scraper serves nothing.
func (s *scraper) serve(w *wiring) {
	if s != nil {
		s.at.Store(w)
		s.begin()
	}
}

// close ends the listener and waits for what is being answered.
func (s *scraper) close() {
	if s == nil {
		return
	}
	s.end()
	s.running.Wait()
}

// fewConns is a listener with a bound: what would be more connections than that is closed at once.
type fewConns struct {
	net.Listener
	room chan struct{} // holds one for each that is open
}

func newFewConns(l net.Listener, most int) *fewConns {
	return &fewConns{l, make(chan struct{}, most)}
}

// Accept waits for a connection for which there is room.
func (l *fewConns) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.room <- struct{}{}:
			return &fewConn{Conn: conn, leave: sync.OnceFunc(func() { <-l.room })}, nil
		default:
			conn.Close()
		}
	}
}

// fewConn makes room when it is closed.
type fewConn struct {
	net.Conn
	leave func()
}

// Close closes the connection.
func (c *fewConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
