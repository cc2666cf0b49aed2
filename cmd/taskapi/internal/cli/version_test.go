package cli

import (
	"runtime/debug"
	"strings"
	"testing"

	"taskapi/cmd/taskapi/internal/cli/base"
)

// TestVersionNamesTheCommit, and the version of Nomad: the commit as the toolchain has noted it, and does without where
// it has not.
func TestVersionNamesTheCommit(t *testing.T) {
	for modified, want := range map[string]string{
		"true":  "taskapi 1.2.3 (commit 0123456789ab-dirty, Nomad API 2.0.6, go",
		"false": "taskapi 1.2.3 (commit 0123456789ab, Nomad API 2.0.6, go",
		"":      "taskapi 1.2.3 (Nomad API 2.0.6, go",
	} {
		build := &debug.BuildInfo{}
		if modified != "" {
			build.Settings = []debug.BuildSetting{{Key: "vcs.modified", Value: modified},
				{Key: "vcs.revision", Value: "0123456789abcdef"}}
		}
		info := versionOf(base.Environment{Version: "1.2.3"}, func() (*debug.BuildInfo, bool) { return build, true })
		if got := info.line(); !strings.HasPrefix(got, want) {
			t.Errorf("modified %q: %q, want %q", modified, got, want)
		}
	}
	if got := versionOf(base.Environment{Version: "1"}, func() (*debug.BuildInfo, bool) {
		return nil,
			false
	}).line(); !strings.HasPrefix(got, "taskapi 1 (Nomad API 2.0.6, go") {
		t.Errorf("without a note: %q", got)
	}
}
