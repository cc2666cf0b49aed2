package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers"
)

// manyEvals returns evaluations in no order: two namespaces, three of each CreateIndex.
func manyEvals() []*api.Evaluation {
	var evals []*api.Evaluation
	for i := range 30 {
		evals = append(evals, &api.Evaluation{
			ID: fmt.Sprintf("%02x.e", i*7%30), Namespace: []string{"prod", "default"}[i%2], CreateIndex: uint64(5 + i/3*10), Priority: i,
		})
	}
	rand.Shuffle(len(evals), func(i, j int) { evals[i], evals[j] = evals[j], evals[i] })
	return evals
}

// TestPages: whatever the order and the size of its pages, a list has each value once.
func TestPages(t *testing.T) {
	evals := manyEvals()
	for name, order := range map[string]struct {
		order handlers.ListOrder
		query url.Values
		want  int
	}{
		"by ID":                  {handlers.ByID, url.Values{}, 30},
		"by namespace and ID":    {handlers.ByNamespaceID, url.Values{}, 30},
		"by index":               {handlers.ByCreateIndex, url.Values{}, 30},
		"by index, with prefix":  {handlers.ByCreateIndex, url.Values{"prefix": {"0"}}, 16},
		"in a namespace":         {handlers.ByNamespaceID, url.Values{"namespace": {"prod"}}, 15},
		"in every namespace":     {handlers.ByCreateIndex, url.Values{"namespace": {"*"}}, 30},
		"filtered":               {handlers.ByCreateIndex, url.Values{"filter": {`Namespace == "prod" and Priority != 4`}}, 14},
		"filtered, with nothing": {handlers.ByID, url.Values{"filter": {`ID == "x"`}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			page := func(extra ...string) ([]string, string) {
				query := url.Values{}
				maps.Copy(query, order.query)
				for i := 0; i < len(extra); i += 2 {
					query.Set(extra[i], extra[i+1])
				}
				ids, next, err := handlers.Page(t.Context(), query.Encode(), order.order, evals)
				if err != nil {
					t.Fatal(err)
				}
				return ids, next
			}
			whole, next := page()
			if len(whole) != order.want || next != "" {
				t.Fatalf("the whole list has %d, want %d, and the token %q, want none", len(whole), order.want, next)
			}
			for _, reverse := range []string{"false", "true"} {
				for _, size := range []int{1, 4, 15, 30, 31} {
					var got []string
					for token := ""; ; {
						ids, next := page("per_page", fmt.Sprint(size), "next_token", token, "reverse", reverse)
						if len(ids) > size {
							t.Fatalf("a page of %d has %d", size, len(ids))
						}
						got, token = append(got, ids...), next
						if next == "" {
							break
						}
					}
					if reverse == "true" {
						slices.Reverse(got)
					}
					if diff := cmp.Diff(whole, got); diff != "" {
						t.Errorf("pages of %d, reverse=%s: -whole +pages\n%s", size, reverse, diff)
					}
				}
			}
		})
	}
}

// TestOrders: lists are sorted as Nomad's, and so are their tokens.
func TestOrders(t *testing.T) {
	evals := []*api.Evaluation{
		{ID: "b", Namespace: "x", CreateIndex: 12}, {ID: "a", Namespace: "y", CreateIndex: 102}, {ID: "c", Namespace: "x", CreateIndex: 12},
	}
	for _, c := range []struct {
		order handlers.ListOrder
		query string
		want  string
	}{
		{handlers.ByID, "per_page=1", "a b"},
		{handlers.ByID, "per_page=1&reverse=true", "c b"},
		{handlers.ByNamespaceID, "per_page=2", "b,c y.a"},
		{handlers.ByCreateIndex, "per_page=2", "b,c 102.a"},                // 12 is before 102
		{handlers.ByCreateIndex, "per_page=1&next_token=12.bb", "c 102.a"}, // after what is there no more
		{handlers.ByCreateIndex, "next_token=13.", "a "},
		{handlers.ByCreateIndex, "prefix=b&per_page=1", "b "},
	} {
		ids, next, err := handlers.Page(t.Context(), c.query, c.order, evals)
		if got := strings.Join(ids, ",") + " " + next; got != c.want || err != nil {
			t.Errorf("%s = %q, %v, want %q", c.query, got, err, c.want)
		}
	}
}

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
			{Filter: `Namespace == "default"`}:                {want: 1},
			{Filter: `Namespace != "default"`}:                {want: 0},
			{Filter: `Nope == 1`}:                             {refused: `struct field with name "Nope"`},
			{Filter: `((`}:                                    {refused: "failed to read filter expression"},
			{Filter: strings.Repeat("(", 1000)}:               {refused: "failed to read filter expression"},
			{PerPage: 1}:                                      {want: 1},
			{PerPage: -1}:                                     {refused: "per_page must be a whole number from 0, for all, to 2147483647"},
			{Reverse: true}:                                   {want: 1},
			{AllowStale: true}:                                {want: 1},
			{Region: "global"}:                                {want: 1},
			{Region: "mars"}:                                  {refused: "No path to region"},
			{Namespace: "*"}:                                  {want: 1},
			{Namespace: "prod"}:                               {want: 0},
			{WaitIndex: 33, WaitTime: 1}:                      {want: 1},
			{Params: map[string]string{"stale": "perhaps"}}:   {refused: "stale must be true or false"},
			{Params: map[string]string{"reverse": "perhaps"}}: {refused: "reverse must be true or false"},
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
		if want := "next_token must be as X-Nomad-NextToken gave it, not "; got.Status != 400 || !strings.HasPrefix(got.Body, want) {
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

// TestFiltersEndWithTheirClients: a filter is applied to nothing for a client that has gone, be it that it waits for another one.
func TestFiltersEndWithTheirClients(t *testing.T) {
	evals := []*api.Evaluation{{ID: "a", Priority: 1}}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, _, err := handlers.Page(t.Context(), "filter=Nope+%3D%3D+1", handlers.ByID, evals); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the filter is not applied to begin with: %v", err)
	}
	if _, _, err := handlers.Page(gone, "filter=Nope+%3D%3D+1", handlers.ByID, evals); !errors.Is(err, context.Canceled) {
		t.Errorf("applied for a client that has gone: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, _, err := handlers.PageBehindAnother(ctx, "filter=Nope+%3D%3D+1", handlers.ByID, evals)
			ended <- err
		}()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Errorf("it did not wait: %v", err)
		default:
		}
		leave()
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		default:
			t.Fatal("it waits for a client that has gone")
		}
	})
}

// TestRegionOfWrites: what is meant for another region is not done here.
func TestRegionOfWrites(t *testing.T) {
	s := newServer(t, newAlloc(t)) // whose actions are nil
	for _, target := range []string{restartPath, signalPath, stopPath} {
		if got := s.do(t, "PUT", target+"?region=mars", operator, `{}`); got.Status != 400 || got.Body != "No path to region" {
			t.Errorf("%s in another region = %d %q, want 400", target, got.Status, got.Body)
		}
	}
	if got := len(s.audited()); got != 3 {
		t.Errorf("%d records in the audit log, want 3", got)
	}
}
