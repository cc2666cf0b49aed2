// Package limitset holds the limits of a server that an operator can set: their names, defaults and ranges, and how
// they are written in a flag or a file. Whatever is set, everything stays bounded. A rate can be off, since the number
// of connections still bounds the callers; a number can't be off.
package limitset

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"taskapi/internal/slice"
	"taskapi/ratelimit"
)

// ErrInvalid is in every error of this package.
var ErrInvalid = errors.New("invalid limit")

// Off is the rate that nobody reaches; in text it is "off".
var Off = ratelimit.Rate{PerSecond: 1e9, Burst: 1e9}

const off = "off"

// AllOff is the text of all rates off.
const AllOff = off

// The ranges.
const (
	maxRate        = 1e6    // tokens a second, and of a burst: more than a machine answers
	minRate        = 1e-3   // about three an hour
	maxConnections = 10_000 // of all sockets together: some 200 MB
	minConnections = 8      // of a socket: streams, waiting queries and others
	minAll         = 64     // of all sockets: twice what is set aside for the operator
	maxHeads       = 1024   // 2 KB each, and 16 KB at most
)

// Set is a value for each limit. All but AllFailedLookups and AllConnections are per socket, and each task has one
// socket.
type Set struct {
	FailedLookups    ratelimit.Rate
	AllFailedLookups ratelimit.Rate
	Refusals         ratelimit.Rate
	Requests         ratelimit.Rate
	Changes          ratelimit.Rate
	Connections      int
	AllConnections   int
	Streams          int
	Waits            int
	Heads            int
}

// limit is one row of the table.
type limit struct {
	name, standard string // standard is the default
	doc            string
	in             func(*Set) any // the limit's place in a set, a *ratelimit.Rate or an *int
	least, most    int            // of a number
}

// table is the list of all limits, in the order of the documents.
var table = []limit{
	{"failed_lookups", "10/s:20", "tokens of a socket's callers that turn out bad, beyond which they get 429",
		func(s *Set) any { return &s.FailedLookups }, 0, 0},
	{"all_failed_lookups", "200/s:200", "the same of all sockets together",
		func(s *Set) any { return &s.AllFailedLookups }, 0, 0},
	{"refusals", "50/s:100", "refusals of any kind on a socket, beyond which each takes 250 ms longer",
		func(s *Set) any { return &s.Refusals }, 0, 0},
	{"requests", off, "a task's requests with a good token, beyond which it gets 429",
		func(s *Set) any { return &s.Requests }, 0, 0},
	{"changes", "20/s:200", "a task's changes and commands that the audit log records, beyond which each waits for its " +
		"turn",
		func(s *Set) any { return &s.Changes }, 0, 0},
	{"connections", "256", "open connections of a socket, beyond which 503",
		func(s *Set) any { return &s.Connections }, minConnections, maxConnections},
	{"all_connections", "1024", "open connections of all sockets together; each takes some 20 KB",
		func(s *Set) any { return &s.AllConnections }, minAll, maxConnections},
	{"streams", "64", "streams and commands in tasks over a socket, beyond which 429",
		func(s *Set) any { return &s.Streams }, 1, maxConnections},
	{"waits", "64", "blocking queries that wait on a socket, beyond which 429",
		func(s *Set) any { return &s.Waits }, 1, maxConnections},
	{"heads", "64", "heads of reads that a socket remembers, to answer the same bytes faster; 0 for none",
		func(s *Set) any { return &s.Heads }, 0, maxHeads},
}

// Limit describes one limit.
type Limit struct{ Name, Default, Doc string }

// Limits returns all limits, in the order of the documents.
func Limits() []Limit {
	return slice.Map(table, func(l limit) Limit { return Limit{l.name, l.standard, l.doc} })
}

var standard = sync.OnceValue(func() (s Set) {
	for _, l := range table {
		_ = l.put(&s, l.standard) // a test holds that each default is good
	}
	return s
})

// Default returns the limits that hold unless something else is set.
func Default() Set { return standard() }

// With returns the set changed by a text: NAME=VALUE, several joined by commas, or "off" for all rates. Errors:
// ErrInvalid, wrapped.
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
			for _, l := range table {
				if rate, ok := l.in(&s).(*ratelimit.Rate); ok {
					*rate = Off
				}
			}
		case !ok:
			errs = append(errs, fmt.Errorf("%w: %q is no NAME=VALUE; write it as %s=%s, or %s for all rates",
				ErrInvalid, setting, table[0].name, "100/s:200", off))
		case seen[name]:
			errs = append(errs, fmt.Errorf("%w: %s is set twice", ErrInvalid, name))
		default:
			errs = append(errs, s.Put(name, value))
		}
		seen[name] = true
	}
	return s, errors.Join(errs...)
}

// Put sets one limit. A rate is N/s, N/m or N/h, or "off"; :BURST after it is how many may come at once, without it as
// many as a second gives. The other limits are numbers. Errors: ErrInvalid, wrapped.
func (s *Set) Put(name, value string) error {
	names := make([]string, len(table))
	for i, l := range table {
		if names[i] = l.name; l.name == name {
			return l.put(s, value)
		}
	}
	return fmt.Errorf("%w: there is none called %q; there are %s", ErrInvalid, name, strings.Join(names, ", "))
}

func (l limit) put(s *Set, value string) (err error) {
	switch at := l.in(s).(type) {
	case *ratelimit.Rate:
		rate, err := parseRate(value)
		if err != nil {
			return fmt.Errorf("%w: %s=%s: %w", ErrInvalid, l.name, value, err)
		}
		*at = rate
	case *int:
		n, err := strconv.Atoi(value)
		if err != nil || n < l.least || n > l.most {
			return fmt.Errorf("%w: %s=%s: give a number from %d to %d", ErrInvalid, l.name, value, l.least, l.most)
		}
		*at = n
	}
	return nil
}

// errRate says what a rate looks like.
var errRate = fmt.Errorf("give a rate from %g to %g a second, such as 10/s, 100/m or 10/s:20 (20 at once), or %s",
	minRate, maxRate, off)

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
	if !(r.PerSecond >= minRate && r.PerSecond <= maxRate) { // true for NaN, too
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

// Check refuses numbers that leave no connection for short requests. Errors: ErrInvalid, wrapped.
func (s Set) Check() error {
	if s.Streams+s.Waits >= s.Connections {
		return fmt.Errorf("%w: streams=%d and waits=%d leave none of connections=%d for other requests; "+
			"set less of these, or more connections", ErrInvalid, s.Streams, s.Waits, s.Connections)
	}
	return nil
}

// Operator returns the set for the operator's socket: requests and changes are not limited, and the numbers are no
// lower than by default, so that the operator can always look and stop.
func (s Set) Operator() Set {
	s.Requests, s.Changes = Off, Off
	s.Connections = max(s.Connections, Default().Connections)
	s.Streams = max(s.Streams, Default().Streams)
	s.Waits = max(s.Waits, Default().Waits)
	return s
}
