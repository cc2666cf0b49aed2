package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/allocrunner/fingerprint"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/httpserve"
	"taskapi/cmd/taskapi/internal/metrics"
	"taskapi/handlers/scrape"
	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// usageTimeout is how long an answer waits for the figures of the tasks, and of the machine. Then it leaves them out.
const usageTimeout = 2 * time.Second

// measure returns all metrics of the agent, the allocation and the machine.
func (s *wiring) measure(ctx context.Context) []scrape.Metric {
	sources := metrics.Sources{
		Auth: s.authStats(), Sockets: s.sockets.stats(), Alloc: s.runner.Alloc(), Datacenter: datacenter,
		Node: fingerprint.Node(s.cfg.Dir.Alloc(s.cfg.ID), s.cfg.Settings.TaskDrivers()), NodeName: thisNode().name,
	}
	sources.Checks, _ = s.runner.Checks()
	if s.audit != nil {
		sources.Audit = new(s.audit.Stats())
	}
	if v, ok := s.runner.(interfaces.HookCounter); ok {
		sources.Hooks = v.HookStats()
	}
	ofTasks, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if samples, err := s.runner.Stats(ofTasks, usageTimeout); err == nil {
		sources.Usage = <-samples // nil when the time is over
	}
	ofHost, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if host, _, err := s.host.Stats(ofHost); err == nil {
		sources.Host = host
	}
	return metrics.Measure(sources)
}

// listenSetting begins an error about Settings.MetricsListen.
const listenSetting = "telemetry.listen:"

// Bounds of the listener for metrics, to which everybody on the machine can connect.
const (
	maxScrapers = 16               // connections at a time
	scrapeTime  = 10 * time.Second // of one request with its answer
)

// relistenPause is the time between two attempts to listen on an address that another program has.
const relistenPause = 5 * time.Second

// scraper serves the metrics of the present allocation over TCP, to everybody, and nothing else.
type scraper struct {
	address  httpserve.Address
	listener *httpserve.Listener // nil while the address is not free
	logger   *slog.Logger
	say      func(url string) // called when clients can connect
	at       atomic.Pointer[wiring]
	begun    bool
	ctx      context.Context
	end      context.CancelFunc
	running  sync.WaitGroup
}

// startScraper listens on an address; it returns nil for an empty one. When it can't listen there, it returns an error
// for a new allocation. For a resumed one it tries again, since the tasks run and need their agent.
func startScraper(address string, resumed bool, logger *slog.Logger, say func(url string)) (*scraper, error) {
	if address == "" {
		return nil, nil
	}
	parsed, err := httpserve.ParseAddress(address)
	if err != nil {
		return nil, invalidAs(listenSetting, err)
	}
	s := &scraper{address: parsed, logger: logger, say: say}
	if err = s.listen(); err != nil && !resumed {
		return nil, err
	}
	if err != nil {
		logger.Warn("nobody can scrape the metrics until the address is free; it is tried again", "error", err)
	}
	if !parsed.Local() {
		logger.Warn("everybody who reaches this address reads the metrics: the names of job, tasks and checks, and what "+
			"they use", "address", parsed)
	}
	warnOfTakers(parsed, "metrics", logger)
	s.ctx, s.end = context.WithCancel(context.Background())
	return s, nil
}

// CheckMetricsListen refuses a wrong address.
func CheckMetricsListen(text string) error {
	_, err := httpserve.ParseAddress(text)
	return err
}

// warnOfTakers warns if another user of the machine can listen on the TCP port while taskapi does not.
func warnOfTakers(a httpserve.Address, what string, logger *slog.Logger) {
	if a.AnyUserCanTake() {
		logger.Warn(fmt.Sprintf("any user of this machine can listen on this port while taskapi does not, and give readers "+
			"%s of their own; a Unix socket in a directory of yours (unix:///PATH) or a port below %d can't be taken",
			what, proc.FirstUnprivilegedPort()), "address", a)
	}
}

// listen listens on the address.
func (s *scraper) listen() (err error) {
	s.listener, err = httpserve.Listen(s.address, maxScrapers)
	return invalidAs(listenSetting, err)
}

// run serves until the end. Before, it waits for the address.
func (s *scraper) run() {
	for s.listener == nil {
		if wake.Sleep(s.ctx, relistenPause) != nil {
			return
		}
		_ = s.listen() // the first error was logged
	}
	url := s.listener.URL()
	if s.address.Socket == "" {
		url += "/metrics"
	}
	s.say(url)
	var isLocal func(host string) bool
	if s.address.Socket == "" && s.address.Local() {
		isLocal = httpserve.NamesThisMachine
	}
	server := &http.Server{
		Handler: scrape.Handler(func(ctx context.Context) []scrape.Metric {
			return s.at.Load().measure(ctx)
		}, isLocal),
		ReadTimeout:  scrapeTime,
		WriteTimeout: scrapeTime,
	}
	if err := s.listener.Serve(s.ctx, server, s.logger); err != nil {
		s.logger.Warn("the metrics can't be scraped any more", "error", err)
	}
}

// serve makes a wiring the present one, and serves its metrics. A nil scraper serves nothing.
func (s *scraper) serve(w *wiring) {
	if s == nil {
		return
	}
	s.at.Store(w)
	if !s.begun {
		s.begun = true
		s.running.Go(s.run)
	}
}

// close closes the listener and waits for the requests on it.
func (s *scraper) close() {
	if s == nil {
		return
	}
	s.end()
	s.running.Wait()
	if s.listener != nil {
		s.listener.Close()
	}
}
