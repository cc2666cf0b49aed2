package templates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-envparse"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/templates/render"
	"taskapi/internal/ptr"
	"taskapi/internal/wake"
)

// manager renders the templates of one task until it is stopped, or has failed the task.
type manager struct {
	watch     *Watch
	logger    *slog.Logger
	values    Values
	req       interfaces.TaskPrestartRequest // without its Alloc
	namespace string
	region    string
	cancel    context.CancelFunc
	ending    atomic.Bool // the task's process is being stopped

	attempted chan struct{} // closed by noteAttempt, after the first attempt
	rendered  chan struct{} // closed when every template has been rendered
	done      chan struct{} // closed when the goroutine has ended
	begun     wake.Signal   // sent when the process has started, for the scripts of the first rendering
	woken     wake.Signal   // sent when something has changed

	// Used by the goroutine alone:
	templates   []*templateState
	noteAttempt func()
	last        time.Time // when the latest rendering after a change ended

	pending *pendingActions

	mu       sync.Mutex // guards the fields below
	envs     []map[string]string
	asked    map[render.Query]bool // whether the answer has changed since it was read
	followed map[render.Query]*followed
}

// templateState is a template with its place.
type templateState struct {
	*api.Template

	text      render.Template
	file      interfaces.File
	place     place
	used      []render.Query
	missing   []string
	rendered  bool
	unwritten bool // the file is older than the latest rendering, which can't be written for now
}

// newManager returns a manager that renders. Errors: a source that can't be read, a path that leads out.
func newManager(h *Hook, req *interfaces.TaskPrestartRequest) (*manager, error) {
	m := &manager{
		watch: h.cfg.Watch, logger: h.logger, values: h.cfg.Values(h.task), req: *req,
		namespace: req.Alloc.Namespace, region: ptr.Deref(req.Alloc.Job.Region),
		attempted: make(chan struct{}), rendered: make(chan struct{}), done: make(chan struct{}),
		begun: wake.New(), woken: wake.New(),
		envs:     make([]map[string]string, len(req.Task.Templates)),
		asked:    map[render.Query]bool{},
		followed: map[render.Query]*followed{},
	}
	m.noteAttempt = sync.OnceFunc(func() { close(m.attempted) })
	m.req.Alloc = nil // it would keep a version of the allocation alive
	for _, t := range req.Task.Templates {
		state, err := newTemplate(req, t)
		if err != nil {
			return nil, err
		}
		m.templates = append(m.templates, state)
	}
	m.pending = newPending(&m.req, m.templates)
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go m.run(ctx)
	return m, nil
}

func newTemplate(req *interfaces.TaskPrestartRequest, t *api.Template) (*templateState, error) {
	s := &templateState{Template: t, text: render.Template{
		Source: "(dynamic)", Text: ptr.Deref(t.EmbeddedTmpl), Left: ptr.Deref(t.LeftDelim), Right: ptr.Deref(t.RightDelim),
		MissingKey: ptr.Deref(t.ErrMissingKey), Destination: ptr.Deref(t.DestPath),
	}}
	var err error
	if source := ptr.Deref(t.SourcePath); source != "" {
		s.text.Source = source
		if s.text.Text, err = readSource(req, source); err != nil {
			return nil, err
		}
	}
	if s.place, err = destination(req, ptr.Deref(t.DestPath)); err != nil {
		return nil, err
	}
	s.file, err = fileOf(t, s.place, req.User)
	return s, err
}

func (m *manager) isRendered() bool {
	select {
	case <-m.rendered:
		return true
	default:
		return false
	}
}

// env returns the variables of the templates with env. The later ones win.
func (m *manager) env() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	env := map[string]string{}
	for _, one := range m.envs {
		maps.Copy(env, one)
	}
	return env
}

// started lets the scripts of the first rendering run.
func (m *manager) started() {
	m.ending.Store(false)
	m.begun.Send()
}

// stop ends the goroutine, and waits for its end or the context's.
func (m *manager) stop(ctx context.Context) {
	m.cancel()
	select {
	case <-m.done:
	case <-ctx.Done():
	}
}

// changed notes which queries have new answers. It does not block.
func (m *manager) changed(changes cluster.Changes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for q, already := range m.asked {
		if !already && (changes.Gap || slices.ContainsFunc(changes.Keys, func(key string) bool {
			return m.concerns(q, key)
		})) {
			m.asked[q] = true
			m.woken.Send()
		}
	}
}

// failure is the end of the task: the reason is for its event.
type failure struct{ reason string }

func (f *failure) Error() string { return f.reason }

// run renders all templates, and then those that a change concerns.
func (m *manager) run(ctx context.Context) {
	defer close(m.done)
	defer m.cancel()
	defer m.unfollow()
	m.watch.add(m)
	defer m.watch.remove(m)
	err := m.first(ctx)
	for err == nil {
		err = m.next(ctx)
	}
	if ctx.Err() == nil {
		m.logger.Info("templates failed", "error", err)
		m.req.Lifecycle.Fail(err.Error())
	}
}

// first renders until every template has been rendered once.
func (m *manager) first(ctx context.Context) error {
	pending := m.templates
	events := missingEvents{emit: m.req.Lifecycle.Event}
	for {
		if err := m.attempt(ctx, pending); err != nil {
			return err
		}
		if pending = m.unrendered(); len(pending) == 0 {
			break
		}
		m.noteAttempt()
		events.update(pending)
		select {
		case <-m.woken:
		case <-events.due():
		case <-ctx.Done():
			return ctx.Err()
		}
		events.fire()
		pending = append(pending, m.dirty()...)
	}
	if m.req.Restored {
		m.noteAttempt() // a task that waits for its hooks can't be restarted, and runs no script
		if err := m.actPending(ctx); err != nil {
			return err
		}
	}
	close(m.rendered)
	return nil
}

func (m *manager) unrendered() []*templateState {
	return slices.DeleteFunc(slices.Clone(m.templates), func(t *templateState) bool { return t.rendered })
}

// dirty returns the rendered templates that a change concerns or whose files could not be written. It forgets the
// changes.
func (m *manager) dirty() []*templateState {
	m.mu.Lock()
	changed := maps.Clone(m.asked)
	for q := range m.asked {
		m.asked[q] = false
	}
	m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.templates), func(t *templateState) bool {
		return !t.rendered || !t.unwritten && (ptr.Deref(t.Once) ||
			!slices.ContainsFunc(t.used, func(q render.Query) bool { return changed[q] }))
	})
}

// next waits for a change, renders what the change concerns, and acts on the task.
func (m *manager) next(ctx context.Context) error {
	select {
	case <-m.begun:
		return m.actPending(ctx)
	case <-m.woken:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	dirty := m.dirty()
	if len(dirty) == 0 {
		return nil
	}
	err := m.attempt(ctx, dirty)
	m.last = time.Now()
	if err != nil {
		return err
	}
	return m.act(ctx)
}

// actPending does all that is still to be done for the process.
func (m *manager) actPending(ctx context.Context) error {
	if err := m.runFirstScripts(ctx); err != nil {
		return err
	}
	return m.act(ctx)
}

// renderPause is the time between two renderings: values may change a thousand times in a second.
const renderPause = 200 * time.Millisecond

// settle waits until nothing has changed for the longest min of the templates' wait blocks, but at most for the max of
// the same block. Without a wait block, it waits only if the latest rendering has just ended.
func (m *manager) settle(ctx context.Context) error {
	if err := wake.Sleep(ctx, renderPause-time.Since(m.last)); err != nil {
		return err
	}
	var least, most time.Duration
	for _, t := range m.templates {
		if t.Wait != nil && ptr.Deref(t.Wait.Min) > least {
			least, most = *t.Wait.Min, ptr.Deref(t.Wait.Max)
		}
	}
	if least == 0 {
		return nil
	}
	if most == 0 {
		most = 4 * least // consul-template's
	}
	for end := time.After(most); ; {
		select {
		case <-m.woken:
		case <-time.After(least):
			return nil
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// attempt renders templates, again and again while the store can't be read, and writes the files that differ.
func (m *manager) attempt(ctx context.Context, templates []*templateState) error {
	for warned := false; ; warned = true {
		results, err := m.render(ctx, templates)
		if err == nil {
			return m.write(templates, results)
		}
		if _, failed := errors.AsType[*failure](err); failed || ctx.Err() != nil {
			return err
		}
		m.noteAttempt()
		if !warned {
			m.logger.Warn("templates wait until what they read can be read", "error", err)
			m.req.Lifecycle.Event(Waiting, "Waiting: "+err.Error())
		}
		if err := wake.Sleep(ctx, retryPause); err != nil {
			return err
		}
	}
}

// maxRounds bounds how often answers may lead to further queries.
const maxRounds = 100

// render renders templates once. Errors: *failure, and those of the store, after which another attempt may succeed.
func (m *manager) render(ctx context.Context, templates []*templateState) ([]render.Result, error) {
	done, err := m.watch.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	session, err := render.Start(ctx)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	req := render.Request{Env: m.req.Env.List(), Namespace: m.namespace}
	var asked []render.Query
	for _, t := range templates {
		req.Templates = append(req.Templates, t.text)
		asked = append(asked, t.used...)
	}
	answered := map[render.Query]bool{}
	left := render.MaxAnswers
	for range maxRounds {
		for _, q := range asked {
			if answered[q] {
				continue
			}
			answer, err := m.answer(ctx, q)
			if err != nil {
				return nil, redact(req, q, err)
			}
			if left -= answer.Size(); left < 0 {
				return nil, &failure{fmt.Sprintf("Template failed: the templates of a task may read %d MiB together",
					render.MaxAnswers>>20)}
			}
			answered[q] = true
			req.Known = append(req.Known, render.Known{Query: q, Answer: answer})
		}
		response, err := session.Render(req)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, &failure{"Template failed: " + err.Error()}
		}
		asked = nil
		for _, r := range response.Results {
			if r.Error != "" {
				return nil, &failure{"Template failed: " + r.Error}
			}
			for _, q := range r.Missing {
				if !answered[q] {
					asked = append(asked, q)
				}
			}
		}
		if len(asked) == 0 {
			return response.Results, nil
		}
	}
	return nil, &failure{fmt.Sprintf("Template failed: each of %d answers led to another question", maxRounds)}
}

// write writes the files of the templates that have all values. A file that can't be written for now keeps its content
// and is tried again: the task runs on. Errors: *failure.
func (m *manager) write(templates []*templateState, results []render.Result) error {
	for i, t := range templates {
		r := results[i]
		t.used, t.missing = r.Used, r.Names
		if len(r.Missing) > 0 {
			continue
		}
		var env map[string]string
		if ptr.Deref(t.Envvars) {
			var err error
			if env, err = envparse.Parse(strings.NewReader(string(r.Output))); err != nil {
				// the parser's error has the line, which may be secret
				return &failure{fmt.Sprintf("Template failed to read environment variables: "+
					"error parsing env template %q: it must have lines such as KEY=value", ptr.Deref(t.DestPath))}
			}
		}
		switch err := m.writeFile(t, r.Output); {
		case passes(err):
			m.tryAgain(t, err)
			t.rendered = t.rendered || m.req.Restored // a running process has the file that is there
			continue
		case err != nil:
			return &failure{fmt.Sprintf("Template failed: %s: failed writing file: %v", t.text.Source, err)}
		}
		t.rendered, t.unwritten = true, false
		m.mu.Lock()
		m.envs[slices.Index(m.templates, t)] = env
		m.mu.Unlock()
	}
	m.forget()
	return nil
}

// writeFile writes the file of a template, unless it has the content already.
func (m *manager) writeFile(t *templateState, content []byte) error {
	var owner *interfaces.Owner
	if !t.rendered && !m.req.Restored { // an earlier version of the job may have given the file to others
		owner = cmp.Or(t.file.Owner, &interfaces.Owner{UID: m.req.User.UID, GID: m.req.User.GID})
	}
	if t.place.holds(m.req.Dir, content, owner, t.file.Mode) {
		return nil
	}
	file := t.file
	file.Data = content
	write := func() error { return m.req.WriteFile(file) }
	if !m.req.Restored && !m.isRendered() { // no process has started yet
		return write()
	}
	return m.pending.write(t, digest(content), write)
}

// passes reports whether an error of a write is one that room on the disk, or an operator, can end.
func passes(err error) bool {
	return slices.ContainsFunc([]error{errUnsaved, unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS, unix.EMFILE,
		unix.ENFILE, unix.ENOMEM}, func(one error) bool { return errors.Is(err, one) })
}

// tryAgain has a file that could not be written rendered again after a while. The first failure in a row is logged, and
// is an event of the task.
func (m *manager) tryAgain(t *templateState, err error) {
	if !t.unwritten {
		m.logger.Warn("a template's file can't be written; an older one stays, and taskapi tries again", "error", err)
		m.req.Lifecycle.Event(Waiting, "Waiting: "+err.Error())
	}
	t.unwritten = true
	time.AfterFunc(retryPause, m.woken.Send)
}

// forget drops the queries that no template uses any more.
func (m *manager) forget() {
	used := map[render.Query]bool{} // there may be thousands
	for _, t := range m.templates {
		for _, q := range t.used {
			used[q] = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for q := range m.asked {
		if used[q] {
			continue
		}
		delete(m.asked, q)
		// The goroutine of a followed query may be waiting for mu, so nobody waits for the goroutine.
		if f := m.followed[q]; f != nil {
			f.cancel()
			delete(m.followed, q)
		}
	}
}
