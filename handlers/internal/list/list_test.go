package list

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

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
)

// free is a turn without a wait.
func free() (leave func(), err error) { return func() {}, nil }

// pageOfEvals returns the IDs of the evaluations that a query gets, and the token of the next page.
func pageOfEvals(
	ctx context.Context, text string, order Order, evals []*api.Evaluation,
) (ids []string, next string, err error) {
	query, err := url.ParseQuery(text)
	if err != nil {
		return nil, "", err
	}
	l, err := read(ctx, query, free, Listing[*api.Evaluation]{
		Order:     order,
		ID:        func(e *api.Evaluation) string { return e.ID },
		Namespace: func(e *api.Evaluation) string { return e.Namespace },
		Created:   func(e *api.Evaluation) uint64 { return e.CreateIndex },
	})
	if err != nil {
		return nil, "", err
	}
	page, next, err := l.Page(evals)
	for _, e := range page {
		ids = append(ids, e.ID)
	}
	return ids, next, err
}

// manyEvals returns evaluations in no order: two namespaces, three of each CreateIndex.
func manyEvals() []*api.Evaluation {
	var evals []*api.Evaluation
	for i := range 30 {
		evals = append(evals, &api.Evaluation{
			ID: fmt.Sprintf("%02x.e", i*7%30), Namespace: []string{"prod",
				"default"}[i%2], CreateIndex: uint64(5 + i/3*10), Priority: i,
		})
	}
	rand.Shuffle(len(evals), func(i, j int) { evals[i], evals[j] = evals[j], evals[i] })
	return evals
}

// TestPages: whatever the order and the size of its pages, a list has each value once.
func TestPages(t *testing.T) {
	evals := manyEvals()
	for name, order := range map[string]struct {
		order Order
		query url.Values
		want  int
	}{
		"by ID":                  {ByID, url.Values{}, 30},
		"by namespace and ID":    {ByNamespaceID, url.Values{}, 30},
		"by index":               {ByCreateIndex, url.Values{}, 30},
		"by index, with prefix":  {ByCreateIndex, url.Values{"prefix": {"0"}}, 16},
		"in a namespace":         {ByNamespaceID, url.Values{"namespace": {"prod"}}, 15},
		"in every namespace":     {ByCreateIndex, url.Values{"namespace": {"*"}}, 30},
		"filtered":               {ByCreateIndex, url.Values{"filter": {`Namespace == "prod" and Priority != 4`}}, 14},
		"filtered, with nothing": {ByID, url.Values{"filter": {`ID == "x"`}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			page := func(extra ...string) ([]string, string) {
				query := url.Values{}
				maps.Copy(query, order.query)
				for i := 0; i < len(extra); i += 2 {
					query.Set(extra[i], extra[i+1])
				}
				ids, next, err := pageOfEvals(t.Context(), query.Encode(), order.order, evals)
				must.OK(t, err)
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
		{ID: "b", Namespace: "x", CreateIndex: 12}, {ID: "a", Namespace: "y", CreateIndex: 102}, {ID: "c", Namespace: "x",
			CreateIndex: 12},
	}
	for _, c := range []struct {
		order Order
		query string
		want  string
	}{
		{ByID, "per_page=1", "a b"},
		{ByID, "per_page=1&reverse=true", "c b"},
		{ByNamespaceID, "per_page=2", "b,c y.a"},
		{ByCreateIndex, "per_page=2", "b,c 102.a"},                // 12 is before 102
		{ByCreateIndex, "per_page=1&next_token=12.bb", "c 102.a"}, // after what is there no more
		{ByCreateIndex, "next_token=13.", "a "},
		{ByCreateIndex, "prefix=b&per_page=1", "b "},
	} {
		ids, next, err := pageOfEvals(t.Context(), c.query, c.order, evals)
		if got := strings.Join(ids, ",") + " " + next; got != c.want || err != nil {
			t.Errorf("%s = %q, %v, want %q", c.query, got, err, c.want)
		}
	}
}

// TestFiltersEndWithTheirClients: a filter is applied to nothing for a client that has gone.
func TestFiltersEndWithTheirClients(t *testing.T) {
	evals := []*api.Evaluation{{ID: "a", Priority: 1}}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, _, err := pageOfEvals(t.Context(), "filter=Nope+%3D%3D+1", ByID, evals); err == nil ||
		errors.Is(err, context.Canceled) {
		t.Errorf("the filter is not applied to begin with: %v", err)
	}
	if _, _, err := pageOfEvals(gone, "filter=Nope+%3D%3D+1", ByID, evals); !errors.Is(err,
		context.Canceled) {
		t.Errorf("applied for a client that has gone: %v", err)
	}
}
