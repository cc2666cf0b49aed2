package handlers_test

import (
	"context"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestSDKQueryOptions(t *testing.T) {
	s := newServer(t, newAlloc(t), everyRoute)
	client := s.sdk(t, goodToken)
	lists := map[string]func(*api.QueryOptions) (int, *api.QueryMeta, error){
		"allocations": func(q *api.QueryOptions) (int, *api.QueryMeta, error) {
			list, meta, err := client.Allocations().List(q)
			return len(list), meta, err
		},
		"jobs": func(q *api.QueryOptions) (int, *api.QueryMeta, error) {
			list, meta, err := client.Jobs().List(q)
			return len(list), meta, err
		},
		"allocations of an evaluation": func(q *api.QueryOptions) (int, *api.QueryMeta, error) {
			list, meta, err := client.Evaluations().Allocations(newAlloc(t).snapshot().EvalID, q)
			return len(list), meta, err
		},
	}
	for name, list := range lists {
		for options, c := range map[*api.QueryOptions]struct {
			want    int
			refused string
		}{
			{Filter: `Namespace == "default"`}:  {want: 1},
			{Filter: `Namespace != "default"`}:  {want: 0},
			{Filter: `Nope == 1`}:               {refused: `struct field with name "Nope"`},
			{Filter: `((`}:                      {refused: "failed to read filter expression"},
			{Filter: strings.Repeat("(", 1000)}: {refused: "failed to read filter expression"},
			{PerPage: 1}:                        {want: 1},
			{PerPage: -1}: {refused: "per_page must be a whole number from 0, for all, to " +
				"2147483647"},
			{Reverse: true}:              {want: 1},
			{AllowStale: true}:           {want: 1},
			{Region: "global"}:           {want: 1},
			{Region: "mars"}:             {refused: "No path to region"},
			{Namespace: "*"}:             {want: 1},
			{Namespace: "prod"}:          {want: 0},
			{WaitIndex: 33, WaitTime: 1}: {want: 1},
			{Params: map[string]string{"stale": "perhaps"}}:                 {refused: "stale must be true or false"},
			{Params: map[string]string{"reverse": "perhaps"}}:               {refused: "reverse must be true or false"},
			{Params: map[string]string{"per_page": "99999999999999999999"}}: {refused: "per_page must be a whole number"},
			{Params: map[string]string{"index": "18446744073709551616"}}:    {refused: "index must be a whole number"},
		} {
			got, meta, err := list(options)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), "400") || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%s with %+v: %v, want 400 with %q", name, *options, err, c.refused)
				}
				continue
			}
			if err != nil || got != c.want || meta.NextToken != "" {
				t.Errorf("%s with %+v = %d, %+v, %v, want %d and no token", name, *options, got, meta, err, c.want)
			}
		}
	}
	for _, token := range []string{"x", "x.y", "-1.x", "99999999999999999999.x", strings.Repeat("9", 3000)} {
		got := s.do(t, "GET", "/v1/allocations?next_token="+token, goodToken, "")
		if want := "next_token must be as X-Nomad-NextToken gave it, not "; got.Status != 400 ||
			!strings.HasPrefix(got.Body, want) {
			t.Errorf("next_token=%.40s = %d %q, want 400 %q", token, got.Status, got.Body, want)
		}
	}
	got := s.do(t, "GET", "/v1/jobs?per_page=1&next_token=default.demo&pretty", goodToken, "")
	if got.Status != 200 || !strings.HasPrefix(got.Body, "[\n    {") {
		t.Errorf("a page from the job itself on = %d %q", got.Status, got.Body)
	}
}

// TestBadQueriesDoNotWait: what is wrong with a blocking query is said before it waits.
func TestBadQueriesDoNotWait(t *testing.T) {
	alloc := newAlloc(t)
	alloc.wait = func(context.Context, uint64) *api.Allocation {
		t.Error("it waited")
		return alloc.snapshot()
	}
	s := newServer(t, alloc, everyRoute)
	for _, target := range []string{"/v1/allocations", "/v1/jobs"} {
		for _, wrong := range []string{"filter=((", "per_page=x", "next_token=x", "region=mars", "reverse=x"} {
			if got := s.do(t, "GET", target+"?index=34&"+wrong, goodToken, ""); got.Status != 400 {
				t.Errorf("%s?%s = %d, want 400", target, wrong, got.Status)
			}
		}
	}
}

// TestRegionOfWrites: what is meant for another region is not done here.
func TestRegionOfWrites(t *testing.T) {
	s := newServer(t, newAlloc(t)) // whose actions are nil
	for _, target := range []string{restartPath, signalPath, stopPath} {
		if got := s.do(t, "PUT", target+"?region=mars", operator, `{}`); got.Status != 400 ||
			got.Body != "No path to region" {
			t.Errorf("%s in another region = %d %q, want 400", target, got.Status, got.Body)
		}
	}
	if got := len(s.audited()); got != 3 {
		t.Errorf("%d records in the audit log, want 3", got)
	}
}
