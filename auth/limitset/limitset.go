// Package limitset is what can be set of a server's bounds: their names, units, defaults and ranges, as text for a flag or a file. Whatever is
// set, everything stays bounded: a rate may be off, which leaves the callers to the number of connections; a number may not.
package limitset

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"taskapi/ratelimit"
)

// ErrInvalid is in every error of this package.
var ErrInvalid = errors.New("invalid limit")

// Off is the rate that nobody reaches, and in text the word for it.
var Off = ratelimit.Rate{PerSecond: 1e9, Burst: 1e9}

const off = "off"

// The ranges.
const (
	maxRate        = 1e6    // tokens a second, and of a burst: more than a machine answers
	minRate        = 1e-3   // about three an hour
	maxConnections = 10_000 // of all sockets together: some 200 MB
	minConnections = 8      // of a socket: streams, waiting queries and others
	minAll         = 64     // of all sockets: twice what is set aside for the operator
)

// Set is all that can be set. Rates are for each socket, which is one task's, but for AllFailedLookups. The numbers of connections, streams and
// waiting queries are those of a task's socket; the operator's has no fewer than by default.
type Set struct {
	FailedLookups    ratelimit.Rate // of tokens, beyond which a socket's callers get 429
	AllFailedLookups ratelimit.Rate // of all sockets together
	Refusals         ratelimit.Rate // of any kind, beyond which each is delayed
	Requests         ratelimit.Rate // with a good token, beyond which a task gets 429; the operator has no such limit
	Changes          ratelimit.Rate // recorded in an audit log, beyond which a task waits; the operator has no such limit
	Connections      int            // of a socket
	AllConnections   int            // of all sockets together
	Streams          int            // streams and upgraded connections of a socket
	Waits            int            // blocking queries of a socket
}

// Default returns what holds unless something else is set.
func Default() Set {
	return Set{
		FailedLookups:    ratelimit.Rate{PerSecond: 10, Burst: 20},
		AllFailedLookups: ratelimit.Rate{PerSecond: 200, Burst: 200},
		Refusals:         ratelimit.Rate{PerSecond: 50, Burst: 100},
		Requests:         Off,
		Changes:          ratelimit.Rate{PerSecond: 20, Burst: 200},
		Connections:      256,
		AllConnections:   1024,
		Streams:          64,
		Waits:            64,
	}
}

// limit is one of them; it has either a rate or a number.
type limit struct {
	name, doc string
	rate      func(*Set) *ratelimit.Rate
	number    func(*Set) *int
	least     int // of the number
}

// table is all of them, in the order of the documents.
var table = []limit{
	{name: "failed-lookups", doc: "tokens of a socket's callers that turn out bad, beyond which they get 429",
		rate: func(s *Set) *ratelimit.Rate { return &s.FailedLookups }},
	{name: "all-failed-lookups", doc: "the same of all sockets together", rate: func(s *Set) *ratelimit.Rate { return &s.AllFailedLookups }},
	{name: "refusals", doc: "refusals of any kind on a socket, beyond which each takes 250 ms longer",
		rate: func(s *Set) *ratelimit.Rate { return &s.Refusals }},
	{name: "requests", doc: "a task's requests with a good token, beyond which it gets 429", rate: func(s *Set) *ratelimit.Rate { return &s.Requests }},
	{name: "changes", doc: "a task's changes and commands that --audit-log records, beyond which each waits for its turn",
		rate: func(s *Set) *ratelimit.Rate { return &s.Changes }},
	{name: "connections", doc: "open connections of a socket, beyond which 503", least: minConnections, number: func(s *Set) *int { return &s.Connections }},
	{name: "all-connections", doc: "those of all sockets together; each takes some 20 KB", least: minAll,
		number: func(s *Set) *int { return &s.AllConnections }},
	{name: "streams", doc: "streams and commands in tasks over a socket, beyond which 429", least: 1, number: func(s *Set) *int { return &s.Streams }},
	{name: "waits", doc: "blocking queries that wait on a socket, beyond which 429", least: 1, number: func(s *Set) *int { return &s.Waits }},
}

// Description is a limit in words.
type Description struct{ Name, Default, Doc string }

// Descriptions returns those of all limits.
func Descriptions() []Description {
	standard := Default()
	all := make([]Description, len(table))
	for i, l := range table {
		all[i] = Description{l.name, l.text(&standard), l.doc}
	}
	return all
}

// With returns the set with what a text changes: NAME=VALUE, several joined by commas, or "off" for all rates. Errors: ErrInvalid, wrapped.
func (s Set) With(text string) (Set, error) {
	if text == "" {
		return s, nil
	}
	var errs []error
	seen := map[string]bool{}
	for setting := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(setting, "=")
		switch {
		case setting == off:
			s = s.withoutRates()
		case !ok:
			errs = append(errs, fmt.Errorf("%w: %q is no NAME=VALUE; write it as %s=%s, or %s for all rates", ErrInvalid, setting, table[0].name, "100/s:200", off))
		case seen[name]:
			errs = append(errs, fmt.Errorf("%w: %s is set twice", ErrInvalid, name))
		default:
			errs = append(errs, s.Put(name, value))
		}
		seen[name] = true
	}
	return s, errors.Join(errs...)
}

// withoutRates returns the set with all rates off.
func (s Set) withoutRates() Set {
	for _, l := range table {
		if l.rate != nil {
			*l.rate(&s) = Off
		}
	}
	return s
}

// Put sets one limit. A rate is N/s, N/m or N/h, with :BURST for how many may come at once (as many as a second gives, if it says nothing), or
// "off"; the others are numbers. Errors: ErrInvalid, wrapped.
func (s *Set) Put(name, value string) error {
	for _, l := range table {
		if l.name != name {
			continue
		}
		if l.rate != nil {
			rate, err := parseRate(value)
			if err != nil {
				return fmt.Errorf("%w: %s=%s: %w", ErrInvalid, name, value, err)
			}
			*l.rate(s) = rate
			return nil
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < l.least || n > maxConnections {
			return fmt.Errorf("%w: %s=%s: give a number from %d to %d", ErrInvalid, name, value, l.least, maxConnections)
		}
		*l.number(s) = n
		return nil
	}
	names := make([]string, len(table))
	for i, l := range table {
		names[i] = l.name
	}
	return fmt.Errorf("%w: there is none called %q; there are %s", ErrInvalid, name, strings.Join(names, ", "))
}

// errRate says what a rate looks like.
var errRate = fmt.Errorf("give a rate from %g to %g a second, such as 10/s, 100/m or 10/s:20 (20 at once), or %s", minRate, maxRate, off)

// parseRate parses a rate.
func parseRate(text string) (ratelimit.Rate, error) {
	if text == off {
		return Off, nil
	}
	rate, burst, hasBurst := strings.Cut(text, ":")
	number, unit, ok := strings.Cut(rate, "/")
	seconds := map[string]float64{"s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if !ok || seconds == 0 || err != nil {
		return ratelimit.Rate{}, errRate
	}
	r := ratelimit.Rate{PerSecond: n / seconds}
	if !(r.PerSecond >= minRate && r.PerSecond <= maxRate) { // not a number, too
		return ratelimit.Rate{}, errRate
	}
	r.Burst = max(1, int(math.Ceil(r.PerSecond)))
	if hasBurst {
		if r.Burst, err = strconv.Atoi(burst); err != nil || r.Burst < 1 || r.Burst > maxRate {
			return ratelimit.Rate{}, fmt.Errorf("the burst %q is no number from 1 to %g", burst, maxRate)
		}
	}
	return r, nil
}

// Check refuses numbers that don't go together. Errors: ErrInvalid, wrapped.
func (s Set) Check() error {
	if s.Streams+s.Waits >= s.Connections {
		return fmt.Errorf("%w: streams=%d and waits=%d leave none of connections=%d for other requests; set less of these, or more connections",
			ErrInvalid, s.Streams, s.Waits, s.Connections)
	}
	return nil
}

// Operator returns the set for the operator's socket: it stays able to look and to stop.
func (s Set) Operator() Set {
	standard := Default()
	s.Requests, s.Changes = Off, Off
	s.Connections = max(s.Connections, standard.Connections)
	s.Streams = max(s.Streams, standard.Streams)
	s.Waits = max(s.Waits, standard.Waits)
	return s
}

// text returns the limit's value as Put takes it.
func (l limit) text(s *Set) string {
	if l.number != nil {
		return strconv.Itoa(*l.number(s))
	}
	r := *l.rate(s)
	if r == Off {
		return off
	}
	return fmt.Sprintf("%g/s:%d", r.PerSecond, r.Burst)
}
