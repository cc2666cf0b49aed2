package limitset_test

import (
	"errors"
	"strings"
	"testing"

	"taskapi/auth/limitset"
	"taskapi/internal/must"
	"taskapi/ratelimit"
)

func TestWith(t *testing.T) {
	for text, change := range map[string]func(*limitset.Set){
		"":                          func(*limitset.Set) {},
		"failed_lookups=100/s:200":  func(s *limitset.Set) { s.FailedLookups = ratelimit.Rate{PerSecond: 100, Burst: 200} },
		"all_failed_lookups=0.5/s":  func(s *limitset.Set) { s.AllFailedLookups = ratelimit.Rate{PerSecond: 0.5, Burst: 1} },
		"refusals=120/m":            func(s *limitset.Set) { s.Refusals = ratelimit.Rate{PerSecond: 2, Burst: 2} },
		"requests=36/h:7":           func(s *limitset.Set) { s.Requests = ratelimit.Rate{PerSecond: 0.01, Burst: 7} },
		"requests=2.5/s":            func(s *limitset.Set) { s.Requests = ratelimit.Rate{PerSecond: 2.5, Burst: 3} },
		"connections=10000,waits=1": func(s *limitset.Set) { s.Connections, s.Waits = 10000, 1 },
		"all_connections=64":        func(s *limitset.Set) { s.AllConnections = 64 },
		"streams=2":                 func(s *limitset.Set) { s.Streams = 2 },
		"failed_lookups=off":        func(s *limitset.Set) { s.FailedLookups = limitset.Off },
		"off": func(s *limitset.Set) {
			s.FailedLookups, s.AllFailedLookups, s.Refusals, s.Requests, s.Changes = limitset.Off, limitset.Off, limitset.Off,
				limitset.Off, limitset.Off
		},
		"off,failed_lookups=1/s:2": func(s *limitset.Set) {
			s.FailedLookups = ratelimit.Rate{PerSecond: 1, Burst: 2}
			s.AllFailedLookups, s.Refusals, s.Requests, s.Changes = limitset.Off, limitset.Off, limitset.Off, limitset.Off
		},
	} {
		want := limitset.Default()
		change(&want)
		if got, err := limitset.Default().With(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestWithErrors(t *testing.T) {
	for text, want := range map[string]string{
		"failed_lookups":              `"failed_lookups" is no NAME=VALUE`,
		"lookups=1/s":                 `there is none called "lookups"; there are failed_lookups, all_failed_lookups`,
		"=1":                          `there is none called ""`,
		"failed_lookups=10":           `failed_lookups=10: give a rate`,
		"failed_lookups=10/d":         `give a rate`,
		"failed_lookups=0/s":          `give a rate from 0.001 to 1e+06 a second`,
		"failed_lookups=-1/s":         `give a rate`,
		"failed_lookups=NaN/s":        `give a rate`,
		"failed_lookups=Inf/s":        `give a rate`,
		"failed_lookups=1e7/s":        `give a rate`,
		"failed_lookups=1/s:0":        `the burst "0" is no number from 1 to 1e+06`,
		"failed_lookups=1/s:":         `the burst ""`,
		"failed_lookups=1/s:2000000":  `the burst "2000000"`,
		"connections=7":               `connections=7: give a number from 8 to 10000`,
		"connections=10001":           `give a number`,
		"connections=off":             `connections=off: give a number`,
		"all_connections=63":          `give a number from 64 to 10000`,
		"streams=0":                   `give a number from 1 to 10000`,
		"waits=x":                     `give a number`,
		"waits=1,waits=2":             `waits is set twice`,
		"waits=1,":                    `"" is no NAME=VALUE`,
		"waits=0,connections=1,a=1":   "waits=0",
		"refusals=1/s,refusals=off":   `refusals is set twice`,
		" off":                        `" off" is no NAME=VALUE`,
		"failed_lookups=1/s, waits=1": `there is none called " waits"`,
	} {
		if _, err := limitset.Default().With(text); !errors.Is(err, limitset.ErrInvalid) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := limitset.Default().With("waits=0,connections=1,a=1"); strings.Count(err.Error(),
		limitset.ErrInvalid.Error()) != 3 {
		t.Errorf("not every mistake is named: %v", err)
	}
}

// TestCheck: connections are left for requests that are over at once.
func TestCheck(t *testing.T) {
	if err := limitset.Default().Check(); err != nil {
		t.Error(err)
	}
	tight, _ := limitset.Default().With("connections=20,streams=10,waits=10")
	if err := tight.Check(); !errors.Is(err, limitset.ErrInvalid) ||
		!strings.Contains(err.Error(), "streams=10 and waits=10 leave none of connections=20") {
		t.Errorf("got %v", err)
	}
}

// TestOperator: what is set for tasks takes nothing from the operator.
func TestOperator(t *testing.T) {
	few := must.Get(limitset.Default().With("connections=8,streams=1,waits=1,requests=36/h"))(t)
	want := limitset.Default()
	want.Changes = limitset.Off
	if got := few.Operator(); got != want {
		t.Errorf("got %+v", got)
	}
	many, _ := limitset.Default().With("connections=512,streams=128,waits=256,changes=off")
	if got := many.Operator(); got != many {
		t.Errorf("got %+v", got)
	}
}

func FuzzWith(f *testing.F) {
	f.Add("off,failed_lookups=100/s:200,connections=20")
	f.Add("requests=1e300/h")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := limitset.Default().With(text)
		if err != nil {
			if !errors.Is(err, limitset.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if set.AllConnections > 10000 || set.Connections > 10000 || set.Streams > 10000 || set.Waits > 10000 ||
			set.FailedLookups.Burst < 1 {
			t.Fatalf("%q: %+v", text, set)
		}
	})
}
