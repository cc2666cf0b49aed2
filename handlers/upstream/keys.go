package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"taskapi/identity"
	"taskapi/internal/wake"
)

const (
	keySetPath = "/.well-known/jwks.json"
	// maxKeySet is what package identity reads of a set, and a byte more.
	maxKeySet = 1<<20 + 1
	// keyRetry is the time between two fetches while the agent is away, and the least time between any two.
	keyRetry = 250 * time.Millisecond
	// keysTrusted is how long the latest good set is trusted while none can be had, as for every set from a URL.
	keysTrusted = 24 * time.Hour
	// keysDoubted is how long the set is trusted after the agent has come back, until it answers with one. An agent that
	// has removed the key of this process's own token, and so those of the tasks, answers late and with an error.
	keysDoubted = 500 * time.Millisecond
)

// refusedError is an answer of the agent that is no key set.
type refusedError struct{ error }

// Keys is the agent's set of public keys. Run follows it by blocking queries, so a key that the cluster removes is
// refused at once. No token causes a fetch.
type Keys struct {
	agent   *Agent
	current atomic.Pointer[identity.KeySet]
}

// NewKeys returns the keys of the agent, none before Run has fetched them.
func NewKeys(agent *Agent) *Keys { return &Keys{agent: agent} }

// Keys makes it a KeySource.
func (k *Keys) Keys() *identity.KeySet { return k.current.Load() }

// Run follows the set until ctx ends. A problem is logged once while it stays the same.
func (k *Keys) Run(ctx context.Context, logger *slog.Logger) {
	var good, began time.Time
	var doubt *time.Timer // nil: the set is not in doubt
	var index uint64
	problem := ""
	for ctx.Err() == nil {
		began = time.Now()
		set, next, err := k.fetch(ctx, index, func() {
			if had := k.current.Load(); index == 0 && doubt == nil {
				doubt = time.AfterFunc(keysDoubted, func() { k.current.CompareAndSwap(had, nil) })
			}
		})
		_, refused := errors.AsType[refusedError](err)
		if doubt != nil && !refused { // an agent that is away again says nothing about the keys
			doubt.Stop()
			doubt = nil
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			good = time.Now()
			k.current.Store(set)
			if problem != "" {
				logger.Info("the agent's public keys are back", "upstream", k.agent.Address.String())
			}
			problem = ""
			if next < index { // the cluster began again
				next = 0
			}
			index = next
		default:
			index = 0 // whatever has happened meanwhile, the next answer comes at once
			if text := err.Error(); text != problem {
				problem = text
				logger.Warn("the agent's public keys can't be had", "upstream", k.agent.Address.String(), "error", err)
			}
			if time.Since(good) > keysTrusted {
				k.current.Store(nil)
			}
		}
		if rest := keyRetry - time.Since(began); rest > 0 {
			_ = wake.Sleep(ctx, rest) // the loop sees that ctx has ended
		}
	}
}

// fetch gets the set once it has changed since the index, or the wait is over. It calls reached when the agent has
// taken the connection.
func (k *Keys) fetch(ctx context.Context, index uint64, reached func()) (*identity.KeySet, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience(index))
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { reached() }})
	r, err := k.agent.Address.request(ctx, resource{path: keySetPath}, index, k.agent.Token())
	if err != nil {
		return nil, 0, err
	}
	response, err := k.agent.queries.RoundTrip(r)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, 0, refusedError{fmt.Errorf("answered with status %d, want 200", response.StatusCode)}
	}
	document, err := io.ReadAll(io.LimitReader(response.Body, maxKeySet))
	if err != nil {
		return nil, 0, err
	}
	set, err := identity.ParseJWKS(document)
	if err == nil && set.Len() == 0 { // an agent that has just started serves it before its own keys are loaded
		err = errors.New("the key set is empty")
	}
	if err != nil {
		return nil, 0, refusedError{err}
	}
	next, _ := strconv.ParseUint(response.Header.Get(indexHeader), 10, 64) // 0: the agent does not block
	return set, next, nil
}
