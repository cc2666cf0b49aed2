package vault

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"taskapi/allocrunner/templates/render"
	"taskapi/internal/wake"
)

const (
	// readAgain is the time after which a secret without a lease is read again: Nomad's.
	readAgain = 5 * time.Minute
	// lookAgain bounds the pause between two looks for a secret that does not exist.
	lookAgain = 10 * time.Second
)

// errNoToken is sent for a task that runs, and has no token of Vault yet.
var errNoToken = errors.New("there is no token of Vault yet")

// Follow is that of templates.Source, with the task's token. It renews the lease of a secret. It reads the secret again
// when the lease ends, when there is another token, and every five minutes if the secret has no lease.
func (h *Hook) Follow(ctx context.Context, q render.Query, file []byte, send func(render.Answer, error)) {
	var last render.Answer
	var mount *mount
	var retry wake.Backoff
	has := false
	// Without its key, a certificate is of no use to another version of the template.
	if pems, life := certificate(file, q); life > 0 && pems.Key != "" {
		has, last = true, render.Answer{PEMs: pems}
		send(last, nil)
		pause(ctx, nil, life)
	}
	for ctx.Err() == nil {
		token, changed := h.current()
		if token == "" {
			send(render.Answer{}, fmt.Errorf("%s: %w", q, errNoToken))
			pause(ctx, changed, forever)
			continue
		}
		read := render.Answer{}
		var a *answer
		var err error
		if mount == nil && q.Kind != render.Certificate {
			mount, err = h.mountOf(ctx, token, q.Name)
		}
		if err == nil {
			a, read, err = h.read(ctx, token, q, mount)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			send(render.Answer{}, h.explain(ctx, token, q, err))
			pause(ctx, changed, retry.Pause())
			continue
		}
		if !has || !same(read, last) {
			has, last = true, read
			send(read, nil)
		}
		if q.Kind == render.Secret && read.Secret == nil {
			pause(ctx, changed, min(retry.Pause(), lookAgain))
			continue
		}
		retry.Reset()
		h.hold(ctx, token, changed, a)
	}
}

// explain returns the error of a failed read. Vault refuses a token that may not read a path like one that is no longer
// good, so explain asks Vault about the token.
func (h *Hook) explain(ctx context.Context, token string, q render.Query, err error) error {
	if isDenied(err) {
		_, lost := h.client.do(ctx, token, http.MethodGet, "auth/token/lookup-self", nil)
		if lost == nil {
			return fmt.Errorf("%w: Vault refuses the task's token: %w", render.ErrDenied, err)
		}
		h.doubt.Send()
	}
	return fmt.Errorf("%s: Vault: %w", q, err)
}

// pause waits for a time, or for another token. It returns false when there is one.
func pause(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
		return false
	case <-ctx.Done():
	}
	return true
}

// same reports whether two answers differ at most in the number of the request.
func same(a, b render.Answer) bool {
	if a.Secret != nil && b.Secret != nil {
		left, right := *a.Secret, *b.Secret
		left.RequestID, right.RequestID = "", ""
		a.Secret, b.Secret = &left, &right
	}
	return reflect.DeepEqual(a, b)
}

// hold renews the lease of a secret, and returns when the secret must be read again.
func (h *Hook) hold(ctx context.Context, token string, changed <-chan struct{}, a *answer) {
	if a != nil && a.life > 0 {
		pause(ctx, nil, a.life) // a certificate is good without the token
		return
	}
	if a == nil || a.LeaseID == "" || !a.Renewable {
		pause(ctx, changed, lifeOf(a))
		return
	}
	whole := time.Duration(a.LeaseDuration) * time.Second
	lease, expires := whole, time.Now().Add(whole)
	d := wake.Jitter(lease / 2)
	for retry := (wake.Backoff{}); ctx.Err() == nil; {
		if !pause(ctx, changed, max(d, time.Second)) {
			return
		}
		renewed, err := h.client.do(ctx, token, http.MethodPut, "sys/leases/renew",
			map[string]any{"lease_id": a.LeaseID, "increment": a.LeaseDuration})
		switch {
		case err == nil && renewed != nil:
			lease = time.Duration(renewed.LeaseDuration) * time.Second
			retry.Reset()
			d = wake.Jitter(lease / 2)
			expires = time.Now().Add(lease)
			if lease < whole/leastPart { // its greatest life is near
				return
			}
		case isRefusal(err) || time.Now().After(expires):
			return
		default:
			d = retry.Pause()
		}
	}
}

// lifeOf returns the time after which to read an answer again that has no renewable lease.
func lifeOf(a *answer) time.Duration {
	if a == nil {
		return wake.Jitter(readAgain)
	}
	life := time.Duration(a.LeaseDuration) * time.Second
	if a.LeaseID == "" {
		// Vault also gives a lease_duration for keys and values, which others may change at any time.
		life = readAgain
		if at := seconds(a.Data["expiration"]); a.Data["certificate"] != nil && at > 0 {
			life = time.Until(time.Unix(int64(at/time.Second), 0))
		}
		if ttl := seconds(a.Data["secret_id_ttl"]); a.Data["secret_id"] != nil && ttl > 0 {
			life = ttl
		}
		if ttl := seconds(a.Data["ttl"]); a.Data["rotation_period"] != nil && ttl > 0 {
			return ttl + time.Second // right after the rotation
		}
	}
	return max(wake.Jitter(life*19/20), time.Second)
}

// seconds returns a number in an answer as seconds; 0 for none.
func seconds(v any) time.Duration {
	number, _ := v.(json.Number)
	n, err := number.Int64()
	if err != nil || n < 0 || n > int64(forever/time.Second) {
		return 0
	}
	return time.Duration(n) * time.Second
}

// mount is where a secrets engine is.
type mount struct {
	path string // with a slash at its end
	kv2  bool   // a store of keys and values with versions, whose paths have a part that people may leave out
}

// mountOf returns the mount of a path. A mount that the token may not look at counts as a mount without versions.
func (h *Hook) mountOf(ctx context.Context, token, name string) (*mount, error) {
	name, _, _ = strings.Cut(name, "?")
	a, err := h.client.do(ctx, token, http.MethodGet, "sys/internal/ui/mounts/"+name, nil)
	m := &mount{}
	switch {
	case isRefusal(err) || err == nil && a == nil:
		return m, nil
	case err != nil:
		return nil, err
	}
	m.path, _ = a.Data["path"].(string)
	options, _ := a.Data["options"].(map[string]any)
	m.kv2 = a.Data["type"] == "kv" && options["version"] == "2" && m.path != ""
	if namespace := strings.Trim(h.client.namespace, "/") + "/"; len(m.path) > len(namespace) {
		m.path = strings.TrimPrefix(m.path, namespace)
	}
	return m, nil
}

// at returns the path of a secret with the part data or metadata, which people may leave out.
func (m *mount) at(name, part string) string {
	name, query, hasQuery := strings.Cut(name, "?")
	below := strings.TrimPrefix(name+"/", m.path)
	top, _, _ := strings.Cut(below, "/")
	if m.kv2 && top != "metadata" && (part != "data" || top != "data" && top != "subkeys") {
		name = path.Join(m.path, part, below)
	}
	if hasQuery {
		name += "?" + query
	}
	return name
}

// read makes one query. The first result is nil without a secret.
func (h *Hook) read(ctx context.Context, token string, q render.Query, m *mount) (*answer, render.Answer, error) {
	switch q.Kind {
	case render.Secret:
		a, err := h.client.do(ctx, token, http.MethodGet, m.at(q.Name, "data"), nil)
		if a == nil || err != nil {
			return nil, render.Answer{}, err
		}
		return a, render.Answer{Secret: a.secret()}, nil
	case render.Written:
		var data map[string]any
		if err := json.Unmarshal([]byte(q.Data), &data); err != nil {
			return nil, render.Answer{}, err
		}
		if m.kv2 {
			data = map[string]any{"data": data}
		}
		a, err := h.client.do(ctx, token, http.MethodPut, m.at(q.Name, "data"), data)
		if err == nil && a == nil {
			err = &refusal{http.StatusNotFound, "there is nothing to write to"}
		}
		if err != nil {
			return nil, render.Answer{}, err
		}
		return a, render.Answer{Secret: a.secret()}, nil
	case render.Certificate:
		a, err := h.client.do(ctx, token, http.MethodPut, q.Name, json.RawMessage(q.Data))
		if a == nil || err != nil {
			return nil, render.Answer{}, cmp.Or(err, errNoCertificate)
		}
		var pems *render.PEMs
		if pems, a.life = certificate(a.pems(), q); a.life <= 0 {
			return nil, render.Answer{}, errNoCertificate
		}
		return a, render.Answer{PEMs: pems}, nil
	case render.Secrets:
		a, err := h.client.do(ctx, token, "LIST", m.at(q.Name, "metadata"), nil)
		if a == nil || err != nil {
			return nil, render.Answer{}, err
		}
		var names []string
		keys, _ := a.Data["keys"].([]any)
		for _, key := range keys {
			if name, ok := key.(string); ok {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return nil, render.Answer{Names: names}, nil
	}
	return nil, render.Answer{}, fmt.Errorf("%s is not Vault's", q.Kind)
}
