package auth_test

import (
	"regexp"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// TestMakefileRunsNoRaceTests: the tests that are not built with the race detector are those that the Makefile runs
// without it.
func TestMakefileRunsNoRaceTests(t *testing.T) {
	makefile := strings.Join(strings.Fields(string(must.Read(t, "../Makefile"))), " ")
	if !strings.Contains(makefile, " -run 'Memory$$|^TestAnyMoment$$' ./auth ./allocrunner/internal/taskrunner ") {
		t.Error("the Makefile does not run TestAnyMoment, and the tests of ./auth whose names end in Memory")
	}
	source := must.Read(t, "norace_test.go")
	names := regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllStringSubmatch(string(source), -1)
	if len(names) == 0 {
		t.Error("norace_test.go has no tests")
	}
	for _, name := range names {
		if !strings.HasSuffix(name[1], "Memory") {
			t.Errorf("%s is never run: its name must end in Memory", name[1])
		}
	}
}
