package templates

import (
	"context"
	"errors"

	"taskapi/allocrunner/templates/render"
)

// Source follows the values of another program.
type Source interface {
	// Follow sends the answer to a query, and again each other answer, until ctx ends. While there is no answer it sends
	// the error, and tries again. A certificate that is in the template's file already stays while it is good. Errors that
	// Follow sends: ErrDenied, those of the connection.
	Follow(ctx context.Context, q render.Query, file []byte, send func(render.Answer, error))
}

// followed is a query that a goroutine follows: that of a file, or of a Source.
type followed struct {
	cancel context.CancelFunc
	done   chan struct{}
	sent   chan struct{} // closed when a Source has sent an answer or an error; nil for a file

	// mu of the manager guards the fields below.
	answer render.Answer
	err    error // of a query that has no answer yet
	has    bool
}

// follow returns the latest answer to a query for another program, and notes its changes from now on.
func (m *manager) follow(ctx context.Context, q render.Query) (render.Answer, error) {
	source := m.values.Source(q.Kind.Program())
	if source == nil {
		why := "no agent of Consul is configured: set consul.address"
		if q.Kind.Program() == render.Vault {
			why = "the task has no token of Vault: set vault.address, and give the task a block vault {}"
		}
		return render.Answer{}, refusal(q, why)
	}
	file := m.certificate(q)
	m.mu.Lock()
	f := m.followed[q]
	if f == nil {
		// It outlives this attempt, which may end for another reason.
		following, cancel := context.WithCancel(context.Background())
		f = &followed{cancel: cancel, done: make(chan struct{}), sent: make(chan struct{})}
		m.followed[q] = f
		go func() {
			defer close(f.done)
			source.Follow(following, q, file, func(a render.Answer, err error) { m.sent(q, f, a, err) })
		}()
	}
	m.mu.Unlock()
	select {
	case <-f.sent:
	case <-ctx.Done():
		return render.Answer{}, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if errors.Is(f.err, ErrDenied) && m.req.Restored { // the token may have been replaced while taskapi was away
		return f.answer, errors.New(q.String() + ": " + f.err.Error())
	}
	return f.answer, f.err
}

// certificate returns the content of the file of the template that asks for a certificate.
func (m *manager) certificate(q render.Query) []byte {
	if q.Kind == render.Certificate {
		for _, t := range m.templates {
			if t.text.Destination == q.Destination {
				text, _ := readAs(&m.req, t.place) // there is no file before the first rendering
				return text
			}
		}
	}
	return nil
}

// sent notes an answer or an error of a Source. An error after an answer changes nothing: the answer stands.
func (m *manager) sent(q render.Query, f *followed, answer render.Answer, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := false
	select {
	case <-f.sent:
	default:
		first = true
		defer close(f.sent)
	}
	switch {
	case err == nil:
		f.answer, f.err, f.has = answer, nil, true
	case f.has:
		return
	default:
		f.err = err
	}
	if _, asked := m.asked[q]; asked && !first && err == nil {
		m.asked[q] = true
		m.woken.Send()
	}
}
