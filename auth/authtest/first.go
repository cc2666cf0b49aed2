package authtest

import (
	"net/http"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
)

// first returns the first task of the first job.
func (s *Server) first() *Task { return s.tasks[0] }

// Client returns Nomad's SDK on the first task's socket: see Task.Client.
func (s *Server) Client(token string) *api.Client {
	s.tb.Helper()
	return s.first().Client(token)
}

// HTTP returns an HTTP client on the first task's socket: see Task.HTTP.
func (s *Server) HTTP() *http.Client { return s.first().HTTP() }

// Token returns a new token of the first task: see Task.Token.
func (s *Server) Token(options ...TokenOption) string { return s.first().Token(options...) }

// Bad returns a bad token of the first task: see Task.Bad.
func (s *Server) Bad(kind string, options ...TokenOption) string {
	s.tb.Helper()
	return s.first().Bad(kind, options...)
}

// Socket returns the path of the first task's socket.
func (s *Server) Socket() string { return s.first().Socket() }

// Address returns the address of the first task's socket, as it is in NOMAD_UNIX_ADDR.
func (s *Server) Address() string { return s.first().Address() }

// TokenFile returns the path of the first task's token file: see Task.TokenFile.
func (s *Server) TokenFile() string { return s.first().TokenFile() }

// Env returns the first task's environment: see Task.Env.
func (s *Server) Env() []string { return s.first().Env() }

// End ends the first job's allocation: see Task.End.
func (s *Server) End() { s.first().End() }

// RevokeAll revokes the first task's tokens: see Task.RevokeAll.
func (s *Server) RevokeAll() {
	s.tb.Helper()
	s.first().RevokeAll()
}

// Deny takes capabilities from the first task: see Task.Deny.
func (s *Server) Deny(capabilities ...auth.Capability) {
	s.tb.Helper()
	s.first().Deny(capabilities...)
}

// PutVariable writes a variable in the namespace of the first job: see Task.PutVariable.
func (s *Server) PutVariable(path string, items map[string]string) {
	s.tb.Helper()
	s.first().PutVariable(path, items)
}

// Variable returns the items of a variable in the namespace of the first job, nil for none: see Task.Variable.
func (s *Server) Variable(path string) map[string]string {
	s.tb.Helper()
	return s.first().Variable(path)
}

// DeleteVariable deletes a variable in the namespace of the first job: see Task.DeleteVariable.
func (s *Server) DeleteVariable(path string) {
	s.tb.Helper()
	s.first().DeleteVariable(path)
}

// RegisterService registers a service of the first task, and returns the registration's ID: see Task.RegisterService.
func (s *Server) RegisterService(name, address string, port int, tags ...string) (id string) {
	s.tb.Helper()
	return s.first().RegisterService(name, address, port, tags...)
}

// DeregisterService ends a registration of the first job: see Task.DeregisterService.
func (s *Server) DeregisterService(id string) {
	s.tb.Helper()
	s.first().DeregisterService(id)
}

// newID returns a jti.
func newID() string { return uuid.NewString() }
