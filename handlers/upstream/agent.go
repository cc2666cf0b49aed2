package upstream

import (
	"crypto/tls"
	"net/http"
	"strconv"
	"time"
)

// Agent is the server whose answers are passed on.
type Agent struct {
	Address Address
	// Token returns this process's own token, which is sent for the public keys and for nothing else.
	Token func() string

	queries *http.Transport // of the cache and the keys
	passing *http.Transport // of everything else
}

// NewAgent returns the agent at the address. trust may be nil, for the machine's authorities.
func NewAgent(address Address, trust *tls.Config, token func() string) *Agent {
	return &Agent{Address: address, Token: token, queries: address.transport(trust), passing: address.transport(trust)}
}

const (
	// queryWait is how long a query waits at the agent. A right that the cluster takes away without changing the resource
	// is noticed after it.
	queryWait = 10 * time.Second
	// querySlack is how much longer an answer may take. Nomad adds a sixteenth of the wait.
	querySlack = queryWait/16 + 4*time.Second
)

// patience returns how long a query from the index may take in all.
func patience(index uint64) time.Duration {
	if index == 0 {
		return queryWait
	}
	return queryWait + querySlack
}

// blocking returns the query with the parameters with which it waits for a change after the index.
func blocking(query string, index uint64) string {
	if index == 0 {
		return query
	}
	if query != "" {
		query += "&"
	}
	return query + "index=" + strconv.FormatUint(index, 10) + "&wait=" + queryWait.String()
}
