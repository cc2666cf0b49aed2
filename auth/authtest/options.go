package authtest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
)

// Option configures a Server.
type Option interface{ apply(c *config) }

// Job is an Option: an allocation of one group of a job, with these tasks. Without a Job there is a job "test" with the
// task "web".
type Job struct {
	ID        string // default: "test"
	Namespace string // default: "default"
	Group     string // default: "group"
	Tasks     []string

	// Identities are the identities of every task beside its default identity, as in a job file's identity blocks: tokens
	// for other audiences, in files or variables.
	Identities []*api.WorkloadIdentity
}

func (j Job) apply(c *config) { c.jobs = append(c.jobs, j) }

type option func(c *config)

func (o option) apply(c *config) { o(c) }

// Policy says what tasks may do. It is the text of a policy file, or the name of a preset, "local" or "nomad", as for
// `taskapi run --policy`. See also Server.Deny.
func Policy(text string) Option { return option(func(c *config) { c.policy = text }) }

// Limits changes the limits, as the setting `limits` does: "failed_lookups=1/s:5,streams=2". "off" is for tests that
// send many bad tokens on purpose.
func Limits(text string) Option { return option(func(c *config) { c.limits = text }) }

// Audience is the audience of default identities and of the tokens that the server accepts, in place of Nomad's
// "nomadproject.io".
func Audience(names ...string) Option { return option(func(c *config) { c.audience = names }) }

// OIDC makes the JWKSServer the issuer in every token, as verifiers by OpenID Connect require.
func OIDC() Option { return option(func(c *config) { c.oidc = true }) }

// FrozenClock stops the server's clock: only Advance moves it. So a limit never fills up by itself, however slow the
// machine is.
func FrozenClock() Option { return option(func(c *config) { c.frozen = time.Now() }) }

type config struct {
	jobs     []Job
	policy   string
	limits   string
	audience []string
	oidc     bool
	frozen   time.Time // zero for a clock that goes
	issuer   string
}

// complete sets the defaults, and returns what is wrong with the options.
func (c *config) complete() error {
	if len(c.jobs) == 0 {
		c.jobs = []Job{{Tasks: []string{"web"}}}
	}
	if len(c.audience) == 0 {
		c.audience = []string{identity.DefaultAudience}
	}
	seen := map[string]bool{}
	for i := range c.jobs {
		j := &c.jobs[i]
		j.ID, j.Namespace, j.Group = cmp.Or(j.ID, "test"), cmp.Or(j.Namespace, "default"), cmp.Or(j.Group, "group")
		if len(j.Tasks) == 0 {
			return fmt.Errorf("job %s: a job without tasks", j.ID)
		}
		name := j.Namespace + "/" + j.ID
		if seen[name] {
			return fmt.Errorf("two jobs are called %s", name)
		}
		seen[name] = true
		for i, t := range j.Tasks {
			if t == "" || strings.ContainsAny(t, "/:\x00") || t == "." || t == ".." || slices.Contains(j.Tasks[:i], t) {
				return fmt.Errorf("job %s: %q is no name for a task, or another has it", j.ID, t)
			}
		}
	}
	return nil
}
