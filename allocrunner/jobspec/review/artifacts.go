package review

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/artifacts/source"
	"taskapi/internal/ptr"
)

var artifactLimits = []limit[api.TaskArtifact]{
	among[api.TaskArtifact]("artifact mode", "", "any", "dir", "file"),
	{"artifact destination", "it must be in the task's directory, to which it is relative, or in alloc/, and not be " +
		"taskapi's own secrets/api.sock", nil,
		func(a *api.TaskArtifact) bool { return isPlace(ptr.Deref(a.RelativeDest)) }},
	{"artifact options", "a checksum must not be empty", nil,
		func(a *api.TaskArtifact) bool {
			sum, ok := a.GetterOptions["checksum"]
			return !ok || strings.TrimSpace(sum) != ""
		}},
}

// isPlace reports whether an artifact may be fetched to a path. What a reference stands for is known only later.
func isPlace(path string) bool {
	const task = "task"
	at := filepath.Join(task, path)
	top, below, _ := strings.Cut(at, "/")
	return hasReference(path) || filepath.IsLocal(at) && (top == "alloc" || top == task && below != "secrets/api.sock")
}

func (r *reviewer) artifacts(t *api.Task) {
	each(r, "artifact", t.Artifacts, func(a *api.TaskArtifact) {
		r.in("artifact", source.Shown(ptr.Deref(a.GetterSource)), func() {
			restrict(r, artifactLimits, a)
			err := checkSource(a, r.host.FileDirs)
			if _, missing := errors.AsType[*fs.PathError](err); missing {
				r.add(Warning, "artifact source", "%v; unless it is there before, the task fails to start", err)
			} else if err != nil {
				r.refuse("artifact source", "%v", err)
			}
			for _, name := range slices.Sorted(maps.Keys(a.GetterOptions)) {
				if !slices.Contains(source.Options, name) {
					r.add(Warning, "artifact options", "%q is no option, and becomes a part of the URL; the options are %s",
						name, strings.Join(source.Options, ", "))
				}
			}
		})
	})
}

// checkSource returns the error that the task would fail with, unless a reference stands for a part of the source.
// fileDirs are the directories of this machine that artifacts may come from. Errors: *fs.PathError when a file of this
// machine is missing.
func checkSource(a *api.TaskArtifact, fileDirs []string) error {
	text := ptr.Deref(a.GetterSource)
	if hasReference(text) {
		return nil
	}
	known := map[string]string{}
	for name, value := range a.GetterOptions {
		if !hasReference(value) {
			known[name] = value
		}
	}
	s, err := source.Parse(text, known)
	if err != nil {
		return err
	}
	return s.CheckDirs(fileDirs)
}
