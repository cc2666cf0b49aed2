package main

import (
	"bytes"
	"errors"
	"go/build"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// allowedImports lists the packages of the module that each package may import. A package without an entry imports none
// of them. The packages of internal/ are helpers: every package may import them, and they import nothing but each
// other.
//
// These rules matter most. allocrunner imports nothing of auth, identity, handlers or socket, so another program can
// run tasks without the API. handlers imports no runner, no driver and no store, but only their common packages,
// allocrunner/interfaces and leaves of allocrunner. So it works with any runner and any store, and its tests need
// neither. auth and identity import nothing of allocrunner, so other people's tests can build them on systems without a
// runner. cmd/taskapi joins the two sides, and so does auth/authtest, without a runner.
var allowedImports = map[string][]string{
	"allocrunner": {
		"allocrunner/artifacts/fetch", // the program is re-executed for it, as for the keeper
		"allocrunner/drivers",
		"allocrunner/drivers/builtin",
		"allocrunner/interfaces",
		"allocrunner/internal/accounts",
		"allocrunner/internal/allocdir",
		"allocrunner/internal/allocfs",
		"allocrunner/internal/checks",
		"allocrunner/internal/execio",
		"allocrunner/internal/health",
		"allocrunner/internal/hookmeter",
		"allocrunner/internal/keeper",
		"allocrunner/internal/lifecycle",
		"allocrunner/internal/ports",
		"allocrunner/internal/proctree",
		"allocrunner/internal/registration",
		"allocrunner/internal/snapshots",
		"allocrunner/internal/services",
		"allocrunner/internal/stats",
		"allocrunner/internal/taskrunner",
		"allocrunner/jobspec/jobdiff", // what of a new version of the job can be applied in place
		"allocrunner/jobspec/review",
		"allocrunner/readiness",
		"allocrunner/taskenv",
		"allocrunner/templates/render", // the program is re-executed for it, as for the keeper
	},
	"allocrunner/devices": {"allocrunner/claims", "allocrunner/drivers", "allocrunner/interfaces"},
	"allocrunner/datadir": {
		"allocrunner",
		"allocrunner/deployment",
		"allocrunner/interfaces",
		"allocrunner/internal/allocdir",
		"allocrunner/internal/snapshots",
		"allocrunner/jobspec/jobdiff",
		"allocrunner/state",
	},
	"allocrunner/cluster/clustertest": {
		"allocrunner/cluster",
	},
	"allocrunner/cluster/internal/table": {
		"allocrunner/cluster",
	},
	"allocrunner/cluster/disk": {
		"allocrunner/cluster",
		"allocrunner/cluster/internal/table",
	},
	"allocrunner/cluster/claim": {
		"allocrunner/cluster",
	},
	"allocrunner/cluster/fleet": {
		"allocrunner/cluster",
	},
	"allocrunner/cluster/memory": {
		"allocrunner/cluster",
		"allocrunner/cluster/internal/table",
	},
	"allocrunner/cluster/etcd/client": {},
	"allocrunner/cluster/etcd": {
		"allocrunner/cluster",
		"allocrunner/cluster/etcd/client",
		"allocrunner/cluster/internal/table",
	},
	"allocrunner/cluster/etcd/etcdtest": {"allocrunner/cluster", "allocrunner/cluster/etcd",
		"allocrunner/cluster/etcd/client", "allocrunner/internal/proctest"},
	"allocrunner/cluster/registry":  {"allocrunner/cluster", "allocrunner/interfaces"},
	"allocrunner/cluster/stores":    {"allocrunner/cluster", "allocrunner/cluster/disk", "allocrunner/cluster/etcd"},
	"allocrunner/cluster/variables": {"allocrunner/cluster"},
	"allocrunner/consul": {"allocrunner/interfaces", "allocrunner/internal/services",
		"allocrunner/templates/render"}, // the queries of templates
	"allocrunner/hoststats":  {"allocrunner/internal/stats"},
	"allocrunner/deployment": {"allocrunner/interfaces"},
	"allocrunner/dispatch":   {"allocrunner/interfaces"},
	"allocrunner/schedule": {
		"allocrunner/cron",
	},
	"allocrunner/children": {
		"allocrunner/cron",
		"allocrunner/dispatch",
		"allocrunner/interfaces",
		"allocrunner/internal/allocdir",
		"allocrunner/internal/allocfs",
		"allocrunner/internal/snapshots",
		"allocrunner/internal/stats",
		"allocrunner/taskenv",
	},
	"allocrunner/drivers": {"allocrunner/interfaces", "allocrunner/internal/launch", "allocrunner/internal/proctree",
		"allocrunner/taskenv"},
	"allocrunner/drivers/builtin": {"allocrunner/drivers", "allocrunner/drivers/rawexec"},
	"allocrunner/drivers/rawexec": {"allocrunner/drivers", "allocrunner/interfaces", "allocrunner/readiness"},
	"allocrunner/fingerprint": {"allocrunner/cluster", "allocrunner/drivers", "allocrunner/hoststats",
		"allocrunner/internal/ports", "allocrunner/taskenv"},
	"allocrunner/internal/accounts": {"allocrunner/interfaces"},
	"allocrunner/internal/allocdir": {"allocrunner/interfaces"},
	"allocrunner/internal/allocfs": {"allocrunner/interfaces", "allocrunner/internal/allocdir",
		"allocrunner/internal/logs"},
	"allocrunner/internal/checks":   {"allocrunner/interfaces", "allocrunner/internal/services"},
	"allocrunner/internal/services": {"allocrunner/interfaces"},
	"allocrunner/internal/processes": {"allocrunner/drivers", "allocrunner/interfaces", "allocrunner/internal/launch",
		"allocrunner/internal/listeners", "allocrunner/internal/logs", "allocrunner/internal/notify",
		"allocrunner/internal/proctree"},
	"allocrunner/internal/listeners": {"allocrunner/drivers", "allocrunner/internal/ports"},
	"allocrunner/internal/notify":    {"allocrunner/drivers"},
	"allocrunner/internal/health": {"allocrunner/interfaces", // how a check is named
		"allocrunner/internal/lifecycle"},
	"allocrunner/internal/hookmeter": {"allocrunner/interfaces"},
	"allocrunner/internal/restarts":  {"allocrunner/internal/lifecycle"},
	"allocrunner/internal/snapshots": {"allocrunner/deployment", "allocrunner/interfaces"},
	"allocrunner/internal/registration": {
		"allocrunner/interfaces",
		"allocrunner/internal/services",
	},
	"allocrunner/internal/registration/registrationtest": {"allocrunner/interfaces"},
	"allocrunner/internal/keeper": {
		"allocrunner/drivers",
		"allocrunner/interfaces",
		"allocrunner/internal/processes",
		"allocrunner/internal/proctree",
	},
	"allocrunner/internal/stats":    {"allocrunner/internal/proctree"},
	"allocrunner/internal/proctest": {"allocrunner/drivers"},
	"allocrunner/taskenv":           {"allocrunner/interfaces"},
	"allocrunner/internal/taskrunner": {
		"allocrunner/drivers",
		"allocrunner/interfaces",
		"allocrunner/internal/hookmeter",
		"allocrunner/internal/lifecycle",
		"allocrunner/internal/restarts",
		"allocrunner/readiness",
		"allocrunner/schedule",
	},
	"allocrunner/jobspec": {
		"allocrunner/internal/services", // the names of services and checks
		"allocrunner/jobspec/internal/hcleval",
		"allocrunner/jobspec/internal/schema",
	},
	"allocrunner/jobspec/internal/schema": {"allocrunner/jobspec/internal/hcleval"},
	"allocrunner/artifacts": {
		"allocrunner/artifacts/fetch",
		"allocrunner/artifacts/source",
		"allocrunner/interfaces",
	},
	"allocrunner/artifacts/fetch": {"allocrunner/artifacts/source"},
	"allocrunner/jobspec/review": {
		"allocrunner/artifacts/source", // which sources can be fetched
		"allocrunner/drivers",
		"allocrunner/interfaces",        // which jobs start others
		"allocrunner/internal/services", // a review refuses what the set-up of checks would
		"allocrunner/jobspec",
		"allocrunner/jobspec/internal/schema",
		"allocrunner/internal/lifecycle",
		"allocrunner/readiness",
		"allocrunner/schedule",
		"allocrunner/templates/render", // which functions templates lack
		"allocrunner/devices",
		"allocrunner/interfaces", // the directory in which a volume is mounted
		"allocrunner/volumes",    // what volumes the machine has
	},
	"allocrunner/jobspec/bounded": {"allocrunner/jobspec"},
	"allocrunner/jobspec/jobdiff": {
		"allocrunner/interfaces",              // which jobs start others
		"allocrunner/internal/services",       // the defaults of services
		"allocrunner/jobspec/internal/schema", // the defaults of tasks
	},
	"allocrunner/state": {"allocrunner/interfaces"},
	"allocrunner/templates": {
		"allocrunner/cluster",
		"allocrunner/cluster/registry", // whose keys, and the variables', tell what has changed
		"allocrunner/cluster/variables",
		"allocrunner/interfaces",
		"allocrunner/internal/allocfs",
		"allocrunner/templates/render",
	},
	"allocrunner/updates": {"allocrunner/interfaces"},
	"allocrunner/volumes": {
		"allocrunner/claims",
		"allocrunner/interfaces",
		"allocrunner/internal/allocdir",
		"allocrunner/internal/allocfs",
	},
	"allocrunner/vault": {"allocrunner/interfaces", "allocrunner/internal/allocfs",
		"allocrunner/templates/render"}, // the queries of templates
	"auth":           {"auth/limitset", "identity", "ratelimit"},
	"auth/limitset":  {"ratelimit"},
	"auth/badtokens": {"auth", "identity"},
	"handlers/allocations": {
		"allocrunner/interfaces", // what a schedule says of a task
		"auth",
		"handlers/apierror",
		"handlers/internal/evaluations",
		"handlers/internal/list",
		"handlers/internal/route",
		"handlers/internal/wire",
	},
	"handlers/events": {
		"allocrunner/cluster/registry",
		"allocrunner/cluster/variables",
		"allocrunner/interfaces",
		"auth",
		"handlers/apierror",
		"handlers/internal/evaluations",
		"handlers/internal/route",
		"handlers/internal/wire",
	},
	"handlers/exec": {
		"allocrunner/interfaces",
		"auth",
		"handlers/apierror",
		"handlers/internal/route",
		"handlers/internal/transport",
		"handlers/internal/wire",
	},
	"handlers/files": {
		"allocrunner/interfaces",
		"auth",
		"handlers/apierror",
		"handlers/internal/route",
		"handlers/internal/transport",
	},
	"handlers/internal/list": {
		"handlers/internal/filter",
		"handlers/internal/route",
		"handlers/internal/wire",
	},
	"handlers/internal/route": {
		"auth",
		"auth/limitset",
		"handlers/apierror",
		"handlers/internal/budget",
		"handlers/internal/redact",
		"handlers/internal/transport",
	},
	"handlers/internal/transport": {
		"auth",
	},
	"handlers/internal/wire": {"allocrunner/interfaces"},
	"handlers/jobs": {
		"allocrunner/interfaces",
		"allocrunner/jobspec/jobdiff",
		"auth",
		"handlers/apierror",
		"handlers/internal/evaluations",
		"handlers/internal/list",
		"handlers/internal/route",
		"handlers/internal/wire",
	},
	// The table of package handlers again, with handlers that answer for all allocations of a machine.
	"handlers/machine": {
		"allocrunner/interfaces",
		"handlers/apierror",
		"handlers/events",               // of variables, which are of no allocation
		"handlers/internal/evaluations", // the one that has placed an allocation
		"handlers/internal/list",
		"handlers/internal/route",
		"handlers/internal/transport",
		"handlers/internal/wire",
		"handlers/jobs", // what judges a job, and how jobs and evaluations are shown
		"handlers/node", // how namespaces are shown
	},
	"handlers/node": {
		"auth",
		"handlers/apierror",
		"handlers/internal/list",
		"handlers/internal/route",
		"handlers/internal/wire",
		"handlers/scrape",
	},
	"handlers/scrape": {
		"handlers/apierror",
	},
	"handlers/search": {
		"allocrunner/cluster/variables",
		"auth",
		"handlers/apierror",
		"handlers/internal/evaluations",
		"handlers/internal/route",
		"handlers/internal/wire",
	},
	"handlers/services": {
		"allocrunner/cluster/registry",
		"auth",
		"handlers/apierror",
		"handlers/internal/list",
		"handlers/internal/route",
	},
	"handlers/upstream": {
		"auth",
		"auth/limitset",
		"handlers/apierror",
		"handlers/internal/route",
		"handlers/internal/transport",
		"identity",
		"socket",
	},
	"handlers/variables": {
		"allocrunner/cluster/variables",
		"auth",
		"handlers/apierror",
		"handlers/internal/list",
		"handlers/internal/route",
	},
	"handlers": {
		"auth",
		"auth/limitset",
		"handlers/allocations",
		"handlers/apierror",
		"handlers/events",
		"handlers/exec",
		"handlers/files",
		"handlers/internal/evaluations",
		"handlers/internal/route",
		"handlers/internal/wire",
		"handlers/jobs",
		"handlers/machine",
		"handlers/node",
		"handlers/search",
		"handlers/services",
		"handlers/variables",
	},
	// For other people's tests: the real door, without the runner, which needs Linux. It is for tests, and joins the two
	// sides as the agent does.
	"auth/authtest": {
		"allocrunner/cluster",
		"allocrunner/cluster/memory",
		"allocrunner/cluster/registry",
		"allocrunner/cluster/variables",
		"allocrunner/interfaces", // what is registered
		"auth",
		"auth/badtokens",
		"auth/limitset",
		"handlers",
		"handlers/allocations",
		"handlers/events",
		"handlers/faults",
		"handlers/node",
		"identity",
		"identity/revocation",
		"identity/workload",
	},
	// What can go wrong below the API: the reasons of a refusal, a runner's errors, the shared store's.
	"handlers/apierror": {
		"allocrunner/cluster",
		"allocrunner/cluster/registry",
		"allocrunner/cluster/variables",
		"allocrunner/interfaces",
		"auth",
	},
	"handlers/faults":       {"auth", "handlers/apierror"},
	"identity":              {"identity/internal/strictjson"},
	"identity/revocation":   {"identity"},
	"identity/workload":     {"identity"},
	"identity/identitytest": {"identity"},

	"cmd/taskapi": {"allocrunner", "cmd/taskapi/internal/cli", "socket"},
	"cmd/taskapi/internal/settings": {
		"allocrunner/cluster/etcd",
		"allocrunner", // its range of users
		"allocrunner/artifacts",
		"allocrunner/consul",
		"allocrunner/volumes",
		"allocrunner/vault",
		"auth",
		"auth/limitset",
		"cmd/taskapi/internal/agent",
		"identity",
		"identity/workload",
		"allocrunner/devices",
	},
	// The command line: the list of commands, the families, and below them what they share. No family imports another.
	"cmd/taskapi/internal/cli": {
		"allocrunner/taskenv", // the version of Nomad
		"cmd/taskapi/internal/cli/access",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/cli/develop",
		"cmd/taskapi/internal/cli/keys",
		"cmd/taskapi/internal/cli/lifecycle",
		"cmd/taskapi/internal/cli/look",
		"cmd/taskapi/internal/cli/machine",
		"cmd/taskapi/internal/cli/shared",
		"cmd/taskapi/internal/cli/start",
		"cmd/taskapi/internal/linewriter",
	},
	"cmd/taskapi/internal/cli/access": {
		"allocrunner/interfaces", // what a stopped task is
		"cmd/taskapi/internal/agent",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/cli/follow",
		"cmd/taskapi/internal/cli/start", // the flags of settings
		"cmd/taskapi/internal/client",
		"cmd/taskapi/internal/gateway",
		"cmd/taskapi/internal/httpserve",
		"cmd/taskapi/internal/output",
		"cmd/taskapi/internal/proxy",
		"cmd/taskapi/internal/settings",
	},
	"cmd/taskapi/internal/cli/develop": {
		"allocrunner",
		"allocrunner/interfaces",
		"allocrunner/jobspec/review",
		"auth",
		"cmd/taskapi/internal/agent",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/cli/follow",
		"cmd/taskapi/internal/cli/start",
		"cmd/taskapi/internal/linewriter",
		"cmd/taskapi/internal/output",
		"cmd/taskapi/internal/settings",
		"socket",
	},
	"cmd/taskapi/internal/cli/keys": {
		"allocrunner/datadir",
		"allocrunner/interfaces",
		"allocrunner/state",
		"auth",
		"auth/badtokens",
		"cmd/taskapi/internal/agent",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/linewriter",
		"cmd/taskapi/internal/output",
		"cmd/taskapi/internal/tokensync",
		"identity",
		"identity/opaque",
		"identity/revocation",
	},
	"cmd/taskapi/internal/cli/lifecycle": {
		"allocrunner",
		"allocrunner/cluster/claim",
		"allocrunner/cluster/variables",
		"allocrunner/datadir",
		"allocrunner/deployment",
		"allocrunner/interfaces",
		"allocrunner/jobspec",
		"allocrunner/jobspec/jobdiff",
		"allocrunner/jobspec/review",
		"allocrunner/state",
		"allocrunner/templates",
		"cmd/taskapi/internal/agent",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/cli/follow",
		"cmd/taskapi/internal/cli/start",
		"cmd/taskapi/internal/cli/vars",
		"cmd/taskapi/internal/client",
		"cmd/taskapi/internal/linewriter",
		"cmd/taskapi/internal/output",
		"cmd/taskapi/internal/settings",
		"identity",
		"socket",
	},
	"cmd/taskapi/internal/cli/look": {
		"allocrunner/children", // the launches of a job
		"allocrunner",
		"allocrunner/interfaces",
		"allocrunner/readiness",
		"allocrunner/state",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/cli/follow",
		"cmd/taskapi/internal/client",
		"cmd/taskapi/internal/httpserve",
		"cmd/taskapi/internal/linewriter",
		"cmd/taskapi/internal/output",
		"cmd/taskapi/internal/settings",
		"cmd/taskapi/internal/top",
		"cmd/taskapi/internal/ui",
	},
	"cmd/taskapi/internal/cli/machine": {
		"cmd/taskapi/internal/agentlog",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/cli/start",
		"cmd/taskapi/internal/heap",
		"cmd/taskapi/internal/machine",
		"cmd/taskapi/internal/settings",
		"identity/revocation",
	},
	"cmd/taskapi/internal/cli/shared": {
		"allocrunner/cluster/registry",
		"allocrunner/cluster/variables",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/cli/vars",
		"cmd/taskapi/internal/output",
		"handlers/services",
	},
	"cmd/taskapi/internal/cli/base": {
		"allocrunner/cluster",
		"allocrunner/cluster/claim", // how long tasks live without a renewal
		"allocrunner/cluster/stores",
		"allocrunner",
		"allocrunner/datadir",
		"allocrunner/interfaces",
		"allocrunner/schedule", // when a paused task runs again
		"allocrunner/state",
		"cmd/taskapi/internal/agent",
		"cmd/taskapi/internal/client",
		"cmd/taskapi/internal/linewriter",
		"cmd/taskapi/internal/output",
		"cmd/taskapi/internal/settings",
		"handlers/allocations",
		"identity",
	},
	"cmd/taskapi/internal/cli/follow": {
		"allocrunner/children",
		"allocrunner/interfaces",
		"allocrunner/readiness",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/client",
		"cmd/taskapi/internal/linewriter",
		"cmd/taskapi/internal/output",
	},
	"cmd/taskapi/internal/cli/start": {
		"allocrunner",
		"allocrunner/children",
		"allocrunner/dispatch",
		"allocrunner/cluster",
		"allocrunner/cluster/claim",
		"allocrunner/consul",
		"allocrunner/datadir",
		"allocrunner/interfaces",
		"allocrunner/jobspec",
		"allocrunner/jobspec/bounded",
		"allocrunner/jobspec/review",
		"auth",
		"cmd/taskapi/internal/agent",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/cli/follow",
		"cmd/taskapi/internal/client",
		"cmd/taskapi/internal/linewriter",
		"cmd/taskapi/internal/output",
		"cmd/taskapi/internal/settings",
		"identity",
		"identity/revocation",
	},
	"cmd/taskapi/internal/cli/vars": {
		"allocrunner/cluster/variables",
		"cmd/taskapi/internal/agent",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/output",
	},
	"cmd/taskapi/internal/output": {
		"allocrunner/interfaces",           // what a task's events say about its schedule
		"cmd/taskapi/internal/linewriter"}, // what makes a text safe to print
	// The one place that joins the two sides.
	"cmd/taskapi/internal/agent": {
		"allocrunner/cluster/etcd",
		"allocrunner",
		"allocrunner/claims",
		"allocrunner/artifacts",
		"allocrunner/cluster",
		"allocrunner/cluster/claim",
		"allocrunner/cluster/fleet",
		"allocrunner/cluster/registry",
		"allocrunner/cluster/variables",
		"allocrunner/consul",
		"allocrunner/datadir",
		"allocrunner/deployment",
		"allocrunner/devices",
		"allocrunner/dispatch",
		"allocrunner/drivers",
		"allocrunner/drivers/builtin",
		"allocrunner/fingerprint",
		"allocrunner/hoststats",
		"allocrunner/interfaces",
		"allocrunner/jobspec",
		"allocrunner/jobspec/bounded",
		"allocrunner/jobspec/jobdiff",
		"allocrunner/jobspec/review",
		"allocrunner/taskenv", // Nomad's version
		"allocrunner/templates",
		"allocrunner/templates/render", // the queries of templates
		"allocrunner/vault",
		"allocrunner/updates",
		"allocrunner/volumes",
		"auth",
		"auth/limitset",
		"auth/badtokens",
		"cmd/taskapi/internal/agentlog",
		"cmd/taskapi/internal/heap",
		"cmd/taskapi/internal/httpserve",
		"cmd/taskapi/internal/linewriter",
		"cmd/taskapi/internal/metrics",
		"cmd/taskapi/internal/tokensync",
		"handlers",
		"handlers/allocations",
		"handlers/apierror",
		"handlers/events",
		"handlers/exec",
		"handlers/faults", // for tests of clients
		"handlers/files",
		"handlers/jobs",
		"handlers/node",
		"handlers/scrape",
		"identity",
		"identity/opaque",
		"identity/revocation",
		"identity/workload",
		"socket",
	},
	"cmd/taskapi/internal/client": {"allocrunner/datadir", "allocrunner/interfaces", "allocrunner/state",
		"auth", "identity/workload", "socket"},
	// The gateway joins the door and the API of a cluster's agent, as agent joins the door and an allocation.
	"cmd/taskapi/internal/gateway": {
		"auth",
		"auth/limitset",
		"cmd/taskapi/internal/agent", // the settings
		"handlers",                   // which capability a route needs
		"handlers/upstream",
		"identity",
		"socket",
	},
	"cmd/taskapi/internal/httpserve": {"socket"},
	// All allocations of a data directory, of which each has a process of its own.
	"cmd/taskapi/internal/machine": {
		"allocrunner",          // reads an allocation that has ended
		"allocrunner/children", // which child may start again
		"allocrunner/cluster",
		"allocrunner/cluster/fleet",
		"allocrunner/cluster/registry",
		"allocrunner/datadir",
		"allocrunner/hoststats",
		"allocrunner/interfaces",
		"allocrunner/state",
		"auth",
		"auth/limitset",
		"cmd/taskapi/internal/agent",
		"cmd/taskapi/internal/client",
		"cmd/taskapi/internal/settings",
		"handlers",
		"handlers/apierror",
		"handlers/machine",
		"handlers/node",
		"identity",
		"identity/revocation",
		"identity/workload",
		"socket",
	},
	"cmd/taskapi/internal/metrics":   {"allocrunner/interfaces", "auth", "handlers/node", "handlers/scrape", "socket"},
	"cmd/taskapi/internal/tokensync": {"allocrunner/cluster", "identity", "identity/revocation"},
	"cmd/taskapi/internal/proxy":     {"cmd/taskapi/internal/httpserve", "socket"},
	"cmd/taskapi/internal/top": {"allocrunner/interfaces", "allocrunner/readiness",
		"cmd/taskapi/internal/client", "cmd/taskapi/internal/output", "cmd/taskapi/internal/top/tasktext"},
	"cmd/taskapi/internal/ui": {
		"allocrunner/children", // the launches of a job
		"allocrunner/interfaces",
		"cmd/taskapi/internal/cli/base",
		"cmd/taskapi/internal/cli/follow",
		"cmd/taskapi/internal/client",
		"cmd/taskapi/internal/httpserve",
		"cmd/taskapi/internal/linewriter",
		"cmd/taskapi/internal/output",
	},
}

const moduleRoot = "../.."

// packages returns the module's, by their paths within it. Tests are no part of them, and may import what they like.
func packages(t *testing.T) map[string]*build.Package {
	t.Helper()
	found := map[string]*build.Package{}
	err := filepath.WalkDir(moduleRoot, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); dir != moduleRoot && (name == "testdata" || strings.HasPrefix(name, ".") ||
			strings.HasPrefix(name, "_")) {
			return filepath.SkipDir
		}
		p, err := build.ImportDir(dir, 0)
		if _, none := errors.AsType[*build.NoGoError](err); none {
			return nil
		}
		if err != nil {
			return err
		}
		path, err := filepath.Rel(moduleRoot, dir)
		if len(p.GoFiles) > 0 {
			found[path] = p
		}
		return err
	})
	must.OK(t, err)
	return found
}

// TestImports holds the packages to the table: no arrow that is not in it, and no entry that no package needs.
func TestImports(t *testing.T) {
	unused := map[string]bool{}
	for from, tos := range allowedImports {
		for _, to := range tos {
			unused[from+" -> "+to] = true
		}
	}
	for from, p := range packages(t) {
		for _, path := range p.Imports {
			to, ours := strings.CutPrefix(path, "taskapi/")
			if !ours || strings.HasPrefix(to, "internal/") {
				continue
			}
			delete(unused, from+" -> "+to)
			if !slices.Contains(allowedImports[from], to) {
				t.Errorf("%s: %s may not import %s: keep them apart with an interface of %[2]s, or add the arrow to the table "+
					"and say why",
					p.ImportPos[path][0], from, to)
			}
		}
	}
	for _, arrow := range slices.Sorted(maps.Keys(unused)) {
		t.Errorf("the table allows %s, which no file needs: remove it", arrow)
	}
}

// TestHelpersOfTestsStayInTests: no program has internal/must or a package named like identitytest in it.
func TestHelpersOfTestsStayInTests(t *testing.T) {
	helps := func(path string) bool {
		return strings.HasSuffix(path, "test") || strings.HasSuffix(path, "internal/must")
	}
	found := 0
	for from, p := range packages(t) {
		if helps(from) {
			found++
			continue
		}
		for _, path := range p.Imports {
			if strings.HasPrefix(path, "taskapi/") && helps(path) || path == "testing" {
				t.Errorf("%s: %s may not import %s outside of its tests", p.ImportPos[path][0], from, path)
			}
		}
	}
	if found == 0 {
		t.Error("no such package was found")
	}
}

// TestProgramHasNoLibraryForTests: the program pays for each package that it links at each start, also in the keeper
// and before each task. go-cmp, which package hclwrite needs, takes 220 KB of memory.
func TestProgramHasNoLibraryForTests(t *testing.T) {
	out := must.Get(exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output())(t)
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, "taskapi/allocrunner") {
		t.Fatalf("go list names %d packages, and not the runner", len(linked))
	}
	for _, path := range linked {
		if path == "testing" || strings.HasPrefix(path, "github.com/google/go-cmp/") {
			t.Errorf("the program links %s; `go mod why -m` and `go list -deps` tell which import needs it", path)
		}
	}
}

// TestTopLevel holds which folders of the module's top level have code.
func TestTopLevel(t *testing.T) {
	rooms := []string{"allocrunner", "auth", "cmd", "examples", "handlers", "identity", "internal", "packaging",
		"ratelimit", "socket"}
	for path := range packages(t) {
		if top, _, _ := strings.Cut(path, "/"); !slices.Contains(rooms, top) {
			t.Errorf("%s: code belongs into one of %v", path, rooms)
		}
	}
}

// The size that a folder may have, without its tests. A folder that outgrows it is split by what changes together.
const (
	mostFiles = 25
	mostLines = 4000
)

// tooLarge are the folders that are still to be split. A folder that has become small enough must leave the list.
var tooLarge = []string{}

// TestFoldersAreSmall holds every folder to mostFiles and mostLines.
func TestFoldersAreSmall(t *testing.T) {
	for path, p := range packages(t) {
		files := slices.Concat(p.GoFiles, p.IgnoredGoFiles)
		lines := 0
		for _, name := range files {
			text := must.Read(t, filepath.Join(p.Dir, name))
			lines += bytes.Count(text, []byte("\n"))
		}
		large := len(files) > mostFiles || lines > mostLines
		switch {
		case large && !slices.Contains(tooLarge, path):
			t.Errorf("%s has %d files with %d lines: split it, so that no folder has more than %d files or %d lines",
				path, len(files), lines, mostFiles, mostLines)
		case !large && slices.Contains(tooLarge, path):
			t.Errorf("%s is small enough now: remove it from tooLarge", path)
		}
	}
}

// TestPackageComments requires that every package says what it is.
func TestPackageComments(t *testing.T) {
	for path, p := range packages(t) {
		want := "Package " + p.Name + " "
		if p.IsCommand() {
			want = "Command "
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: the package comment is missing or does not begin with %q", path, want)
		}
	}
}
