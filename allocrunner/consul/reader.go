package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"

	"taskapi/allocrunner/templates/render"
	"taskapi/internal/wake"
)

// Reader follows keys and services for templates, with a blocking query for each.
type Reader struct{ client agentClient }

// NewReader returns a Reader with the namespace and the partition of a group's block; empty for those of the settings.
// It does no I/O.
func NewReader(settings Settings, secrets Secrets, namespace, partition string) *Reader {
	namespace = cmp.Or(namespace, settings.Namespace)
	if namespace == "default" { // an agent without namespaces accepts no name
		namespace = ""
	}
	return &Reader{agentClient{settings: settings, secrets: secrets, namespace: namespace,
		partition: cmp.Or(partition, settings.Partition), longest: maxAnswer, blocking: true}}
}

// Close ends the connections, after all Follow have returned.
func (r *Reader) Close() { r.client.close() }

const (
	// blockTime is how long the agent may hold a query that has no news: consul-template's.
	blockTime = time.Minute
	// readPause is the least time between two queries: a key may change a thousand times in a second.
	readPause = 100 * time.Millisecond
)

// Follow does what templates.Source says.
func (r *Reader) Follow(ctx context.Context, q render.Query, _ []byte, send func(render.Answer, error)) {
	var last render.Answer
	var retry wake.Backoff
	index, has := uint64(0), false
	for ctx.Err() == nil {
		answer, next, err := r.read(ctx, q, index)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			index = 0
			send(render.Answer{}, err)
			_ = retry.Sleep(ctx) // the loop sees that ctx has ended
			continue
		}
		retry.Reset()
		if !has || !reflect.DeepEqual(answer, last) {
			has, last = true, answer
			send(answer, nil)
		}
		if next < index { // the agent has been restored, or is another
			next = 0
		}
		if index = next; index == 0 {
			index = 1 // 0 would not block
		}
		_ = wake.Sleep(ctx, readPause)
	}
}

// read makes one query, which waits for another index than the given one; 0 for none.
func (r *Reader) read(
	ctx context.Context, q render.Query, index uint64,
) (answer render.Answer, next uint64, err error) {
	limit := requestTimeout
	if index > 0 {
		limit += blockTime + blockTime/16 // the agent adds as much at random
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := r.client.open(); err != nil {
		return answer, 0, err
	}
	token, err := r.client.token()
	if err != nil {
		return answer, 0, err
	}
	options := capi.QueryOptions{Namespace: cmp.Or(q.Namespace, r.client.namespace), Datacenter: q.Region, Token: token,
		Partition: cmp.Or(q.Partition, r.client.partition), Near: q.Near, WaitIndex: index}
	if index > 0 {
		options.WaitTime = blockTime
	}
	meta, err := r.ask(q, options.WithContext(limited), &answer)
	if err != nil {
		return render.Answer{}, 0, readError(q, err)
	}
	return answer, meta.LastIndex, nil
}

func (r *Reader) ask(q render.Query, options *capi.QueryOptions, answer *render.Answer) (*capi.QueryMeta, error) {
	switch q.Kind {
	case render.Key:
		pair, meta, err := r.client.api.KV().Get(q.Name, options)
		if pair != nil {
			answer.Value = new(string(pair.Value))
		}
		return meta, err
	case render.Keys:
		pairs, meta, err := r.client.api.KV().List(q.Name, options)
		for _, p := range pairs {
			answer.Pairs = append(answer.Pairs, &render.KeyPair{
				Path: p.Key, Key: strings.TrimLeft(strings.TrimPrefix(p.Key, q.Name), "/"), Value: string(p.Value),
				CreateIndex: p.CreateIndex, ModifyIndex: p.ModifyIndex, LockIndex: p.LockIndex, Flags: p.Flags,
				Session: p.Session,
			})
		}
		return meta, err
	case render.HealthService:
		entries, meta, err := r.client.api.Health().Service(q.Name, q.Tag, q.Filter == capi.HealthPassing, options)
		answer.Health = healthy(entries, q)
		return meta, err
	case render.CatalogServices:
		services, meta, err := r.client.api.Catalog().Services(options)
		for name, tags := range services {
			answer.Catalog = append(answer.Catalog, &render.CatalogSnippet{Name: name, Tags: sorted(tags)})
		}
		slices.SortFunc(answer.Catalog, func(a, b *render.CatalogSnippet) int { return cmp.Compare(a.Name, b.Name) })
		return meta, err
	}
	return nil, fmt.Errorf("%s is not Consul's", q.Kind)
}

// healthy returns the instances in one of the states that a query names, sorted unless the query asks for the nearest
// first.
func healthy(entries []*capi.ServiceEntry, q render.Query) []*render.ConsulService {
	wanted := strings.Split(q.Filter, ",")
	var found []*render.ConsulService
	for _, e := range entries {
		status := e.Checks.AggregatedStatus()
		if e.Node == nil || e.Service == nil || !slices.Contains(wanted, status) && !slices.Contains(wanted, "any") {
			continue
		}
		found = append(found, &render.ConsulService{
			Node: e.Node.Node, NodeID: e.Node.ID, NodeAddress: e.Node.Address, NodeTaggedAddresses: e.Node.TaggedAddresses,
			NodeMeta: e.Node.Meta, ServiceMeta: e.Service.Meta, Address: cmp.Or(e.Service.Address, e.Node.Address),
			ServiceTaggedAddresses: e.Service.TaggedAddresses, ID: e.Service.ID, Name: e.Service.Service,
			Tags: sorted(e.Service.Tags), Status: status, Checks: e.Checks, Port: e.Service.Port,
			Weights: e.Service.Weights,
		})
	}
	if q.Near == "" {
		slices.SortStableFunc(found, func(a, b *render.ConsulService) int {
			return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
		})
	}
	return found
}

func sorted(tags []string) render.ServiceTags {
	return slices.Sorted(slices.Values(tags))
}

// readError names the query, and the right that the token lacks.
func readError(q render.Query, err error) error {
	err = explained(err, "")
	if answer, ok := errors.AsType[capi.StatusError](err); ok && answer.Code == http.StatusForbidden {
		return fmt.Errorf("%w: Consul refuses the token of consul.token_file, which needs %s", render.ErrDenied, rule(q.Kind))
	}
	return fmt.Errorf("%s: Consul: %w", q, err)
}

// rule returns the rules of a Consul policy that let a token read.
func rule(kind render.Kind) string {
	if kind == render.Key || kind == render.Keys {
		return `the rule key_prefix "…" { policy = "read" }`
	}
	return `the rules service_prefix "" and node_prefix "" { policy = "read" }`
}
