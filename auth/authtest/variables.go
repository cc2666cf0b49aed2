package authtest

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
)

func (s *Server) openShared() error {
	sealer, err := s.ring.Sealer("variables")
	if err != nil {
		return err
	}
	s.cluster = memory.New()
	s.registry = registry.New(s.cluster)
	begin := s.Now()
	s.variables = variables.New(variables.Config{Store: s.cluster, Sealer: sealer, Now: func() (variables.Moment, error) {
		return variables.Moment{Boot: "authtest", Since: s.Now().Sub(begin)}, nil
	}})
	return nil
}

// PutVariable writes a variable in the namespace of the task's job, as an operator does. It fails while somebody holds
// the variable's lock.
func (t *Task) PutVariable(path string, items map[string]string) {
	t.server.tb.Helper()
	v := &api.Variable{Namespace: t.alloc.claims.Namespace, Path: path, Items: items}
	_, _, err := t.server.variables.Put(t.server.running, v, nil)
	t.server.check(err, "write variable %q: ", path)
}

// Variable returns the items of a variable in the namespace of the task's job, nil for none, even if the task may not
// read it.
func (t *Task) Variable(path string) map[string]string {
	t.server.tb.Helper()
	v, _, err := t.server.variables.Read(t.server.running, t.alloc.claims.Namespace, path)
	t.server.check(err, "read variable %q: ", path)
	if v == nil {
		return nil
	}
	return v.Items
}

// DeleteVariable deletes a variable in the namespace of the task's job, if it exists. It fails while somebody holds the
// variable's lock.
func (t *Task) DeleteVariable(path string) {
	t.server.tb.Helper()
	_, err := t.server.variables.Delete(t.server.running, t.alloc.claims.Namespace, path, nil)
	t.server.check(err, "delete variable %q: ", path)
}
