package settings

import (
	"reflect"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/volumes"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/internal/ptr"
)

// Laxer returns the name of a setting that gives the tasks of a job more than other settings do, or records less of
// what they do. It returns an empty name if there is none. Errors: a policy that can't be read.
func Laxer(s, other agent.Settings, job *api.Job) (name string, err error) {
	policy, err := policyExceeds(s, other, job)
	if err != nil {
		return "", err
	}
	for _, rule := range []struct {
		name  string
		laxer bool
	}{
		{"isolate_users", s.IsolateUsers == "" && other.IsolateUsers != ""},
		{"policy", policy},
		{"allow_shared_user", s.AllowSharedUser && !other.AllowSharedUser && other.Policy != ""},
		{"enforce_resources", s.Unlimited && !other.Unlimited},
		{"device", !within(s.Devices, other.Devices)},
		{"host_volume", slices.ContainsFunc(s.HostVolumes, func(v volumes.Volume) bool {
			writable := v
			writable.ReadOnly = false
			return !slices.Contains(other.HostVolumes, v) && !slices.Contains(other.HostVolumes, writable)
		})},
		{"artifact.file_dirs", !within(s.Artifacts.FileDirs, other.Artifacts.FileDirs)},
		{"identity.jwks", !within(s.JWKS, other.JWKS)},
		{"audit.path", s.AuditLog == "" && other.AuditLog != ""},
		{"audit.required", !s.AuditRequired && other.AuditRequired},
		{"audit.reads", !s.AuditReads && other.AuditReads},
	} {
		if rule.laxer {
			return rule.name, nil
		}
	}
	return "", nil
}

// policyExceeds reports whether the policy gives a task of the job more than that of other settings.
func policyExceeds(s, other agent.Settings, job *api.Job) (bool, error) {
	if s.Policy == other.Policy {
		return false, nil
	}
	own, err := s.OpenPolicy()
	if err != nil {
		return false, err
	}
	most, err := other.OpenPolicy()
	if err != nil {
		return false, err
	}
	for _, group := range job.TaskGroups {
		for _, task := range group.Tasks {
			if own.Exceeds(most, ptr.Deref(job.Namespace), task.Name) {
				return true, nil
			}
		}
	}
	return false, nil
}

// within reports whether all elements of a list are in another one.
func within[T any](all, of []T) bool {
	return !slices.ContainsFunc(all, func(one T) bool {
		return !slices.ContainsFunc(of, func(other T) bool { return reflect.DeepEqual(one, other) })
	})
}
