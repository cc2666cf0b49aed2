package templates

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/allocrunner/templates/render"
	"taskapi/internal/filewatch"
	"taskapi/internal/wake"
)

// concerns reports whether the answer to a query may have changed with a key of the store.
func (m *manager) concerns(q render.Query, key string) bool {
	if namespace, path, ok := variables.OfKey(key); ok {
		return q.Kind == render.Variable && q.Namespace == namespace && q.Name == path ||
			q.Kind == render.Variables && (q.Namespace == namespace || q.Namespace == variables.AllNamespaces) &&
				strings.HasPrefix(path, q.Name)
	}
	namespace, name, ok := registry.OfKey(key)
	return ok && namespace == m.namespace && (q.Kind == render.Services || q.Kind == render.Service && q.Name == name)
}

// answer reads the answer to a query, and notes its changes from now on. Errors: *refusedError, the
// store's.
func (m *manager) answer(ctx context.Context, q render.Query) (render.Answer, error) {
	m.mu.Lock()
	m.asked[q] = false
	m.mu.Unlock()
	if q.Kind.Program() == "" && q.Region != "" && q.Region != m.region {
		return render.Answer{}, refusal(q, "there is one region here, "+m.region)
	}
	prefix := ""
	switch q.Kind {
	case render.Variable, render.Variables:
		prefix = variables.KeyPrefix(q.Namespace)
	case render.Service, render.Services:
		prefix = registry.KeyPrefix(m.namespace)
	}
	if prefix != "" {
		if err := m.watch.follow(ctx, prefix); err != nil {
			return render.Answer{}, err
		}
	}
	answer, err := m.read(ctx, q)
	switch {
	case !errors.Is(err, ErrDenied):
	case q.Kind.Program() == "":
		err = refusal(q, "Permission denied") // Nomad's words
	default:
		err = refusal(q, err.Error())
	}
	return answer, err
}

// refusedError is the end of a template because of a query. redact makes it a failure.
type refusedError struct{ name, why string }

func (r *refusedError) Error() string { return r.name + ": " + r.why }

func refusal(q render.Query, why string) error { return &refusedError{q.String(), why} }

// redact returns the error of a query without the values that its name has from other answers.
func redact(req render.Request, q render.Query, err error) error {
	by := req.Redactor()
	if r, ok := errors.AsType[*refusedError](err); ok {
		name := by.Words(q, r.name)
		return &failure{fmt.Sprintf("Template failed: %s: %s", name[:min(len(name), mostCharacters)], by.Words(q, r.why))}
	}
	return errors.New(by.Words(q, err.Error()))
}

func (m *manager) read(ctx context.Context, q render.Query) (answer render.Answer, err error) {
	if q.Kind.Program() != "" {
		return m.follow(ctx, q)
	}
	switch q.Kind {
	case render.Variable:
		v, err := m.values.Variable(ctx, q.Namespace, q.Name)
		if err != nil || v == nil {
			return answer, err
		}
		meta := render.NewMeta(v.Metadata())
		answer.Variable = &render.NomadVariable{NomadVarMeta: *meta, Items: v.Items}
	case render.Variables:
		list, err := m.values.Variables(ctx, q.Namespace, q.Name)
		if err != nil && !errors.Is(err, ErrDenied) { // as for consul-template, nothing may be listed then
			return answer, err
		}
		for _, v := range list {
			answer.List = append(answer.List, render.NewMeta(v))
		}
	case render.Service, render.Services:
		all, err := m.values.Services(ctx, q.Name)
		if err != nil {
			return answer, err
		}
		if q.Kind == render.Services {
			answer.Services = snippets(all)
			return answer, nil
		}
		answer.Service, err = services(q, all)
		return answer, err
	case render.File:
		answer.Text, err = m.readFile(q)
	}
	return answer, err
}

// services returns the registrations that a query selects.
func services(q render.Query, all []*api.ServiceRegistration) ([]*render.NomadService, error) {
	if q.Choose != "" {
		number, key, _ := strings.Cut(q.Choose, "|")
		most, err := strconv.ParseUint(number, 10, 31)
		if err != nil || key == "" {
			return nil, refusal(q, "it must be a number above 0, a key and a service")
		}
		all = registry.Choose(all, int(most), key)
	}
	var found []*render.NomadService
	for _, s := range all {
		if q.Tag != "" && !slices.Contains(s.Tags, q.Tag) {
			continue
		}
		found = append(found, &render.NomadService{
			ID: s.ID, Name: s.ServiceName, Node: s.NodeID, Address: s.Address, Port: s.Port, Datacenter: s.Datacenter,
			Tags: slices.Sorted(slices.Values(s.Tags)), JobID: s.JobID, AllocID: s.AllocID,
		})
	}
	return found, nil
}

// snippets returns the services of registrations, which are sorted by name, with the tags of all.
func snippets(all []*api.ServiceRegistration) []*render.NomadServicesSnippet {
	var list []*render.NomadServicesSnippet
	for _, s := range all {
		if len(list) == 0 || list[len(list)-1].Name != s.ServiceName {
			list = append(list, &render.NomadServicesSnippet{Name: s.ServiceName})
		}
		last := list[len(list)-1]
		last.Tags = append(last.Tags, s.Tags...)
	}
	for _, s := range list {
		slices.Sort(s.Tags)
		s.Tags = slices.Compact(s.Tags)
	}
	return list
}

// readFile returns the content of a file in the task's directory, with the rights of the task's user.
func (m *manager) readFile(q render.Query) (string, error) {
	p, ok := placeOf(m.req.Dir, filepath.Clean(q.Name))
	switch {
	case !filepath.IsAbs(q.Name):
		return "", refusal(q, `the path must be absolute: begin it with {{ env "NOMAD_TASK_DIR" }}`)
	case !ok || p.shared:
		return "", refusal(q, "it is outside of the task's directory")
	}
	m.followFile(q, p)
	text, err := readAs(&m.req, p)
	if err != nil {
		return "", refusal(q, err.Error())
	}
	return string(text), nil
}

// unfollow stops the goroutines that follow files and other programs.
func (m *manager) unfollow() {
	m.mu.Lock()
	all := m.followed
	m.followed = nil
	m.mu.Unlock()
	for _, f := range all {
		f.cancel()
		<-f.done
	}
}

// filePause is the time between two looks at a file that changes: consul-template's.
const filePause = 2 * time.Second

// followFile notes changes of a file from now on. A file that can't be watched is read again only when something else
// changes.
func (m *manager) followFile(q render.Query, p place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.followed[q] != nil {
		return
	}
	look, watch := m.openWatch(p)
	if watch == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &followed{cancel: cancel, done: make(chan struct{})}
	m.followed[q] = f
	was := look()
	go func() {
		defer close(f.done)
		defer watch.Close()
		for {
			select {
			case <-watch.Changed():
			case <-ctx.Done():
				return
			}
			if is := look(); is != was {
				was = is
				m.mu.Lock()
				m.asked[q] = true
				m.mu.Unlock()
				m.woken.Send()
			}
			if wake.Sleep(ctx, filePause) != nil {
				return
			}
		}
	}()
}

// openWatch watches the directory of a file. It returns a function that identifies the file and its version, and the
// watch; both are nil if the directory can't be watched.
func (m *manager) openWatch(p place) (look func() string, watch *filewatch.Watch) {
	root, err := os.OpenRoot(p.top(m.req.Dir))
	if err != nil {
		return nil, nil
	}
	defer root.Close()
	dir, err := root.OpenFile(filepath.Dir(p.path), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil
	}
	defer dir.Close()
	if watch, err = m.watch.files.Dir(dir); err != nil {
		return nil, nil
	}
	return func() string {
		root, err := os.OpenRoot(p.top(m.req.Dir))
		if err != nil {
			return ""
		}
		defer root.Close()
		if info, err := root.Stat(p.path); err == nil {
			if s, ok := info.Sys().(*syscall.Stat_t); ok {
				return fmt.Sprint(s.Ino, s.Size, s.Mtim)
			}
		}
		return ""
	}, watch
}
