package allocrunner_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/internal/same"
)

// TestReferencesThatNothingResolves are warnings; those that only the start of the task resolves, and a shell's own,
// are none.
func TestReferencesThatNothingResolves(t *testing.T) {
	t.Parallel()
	task := shell("main", "")
	task.Identity = &api.WorkloadIdentity{Name: "default", Env: true}
	task.Identities = []*api.WorkloadIdentity{{Name: "shop", Env: true}, {Name: "bank"}}
	task.Meta = map[string]string{"mine": "x"}
	task.Env = map[string]string{
		"GOOD": "${NOMAD_PORT_http} ${NOMAD_ADDR_http} ${NOMAD_META_mine} ${meta.mine} ${attr.kernel.name} " +
			"${node.unique.id} ${NOMAD_TASK_DIR} ${mine}",
		"PORT":  "${NOMAD_PORT_https} ${NOMAD_PORT_http}",
		"ATTR":  "${attr.kernel.nam}",
		"TOKEN": "${NOMAD_TOKEN} ${NOMAD_TOKEN_shop} ${NOMAD_UNIX_ADDR} ${NOMAD_TOKEN_bank}",
	}
	task.Config["args"] = []any{
		"${NOMAD_PORT_http} ${NOMAD_ALLOC_DIR} ${attr.cpu.arch} ${meta.mine} ${GOOD} ${NOMAD_TOKEN} ${HOME} " +
			"${upper(NOMAD_ALLOC_ID)}", "${NOMAD_PORT_https}", "${meta.none}", "%{http_code}", "${GOOD#x}",
	}
	job := &api.Job{ID: new("j"), TaskGroups: []*api.TaskGroup{{
		Name: new("g"), Tasks: []*api.Task{task},
		Networks: []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}},
	}}}
	var got []string
	for _, f := range allocrunner.CheckTasks(&api.Allocation{ID: "a", Job: job, TaskGroup: "g"}, t.TempDir(),
		builtin.Drivers) {
		if f.Severity != review.Warning {
			t.Errorf("not a warning: %+v", f)
		}
		if want := strings.Contains(f.Message, "The task fails to start."); f.Fails != want {
			t.Errorf("the task fails: %v, want %v: %s", f.Fails, want, f.Message)
		}
		got = append(got, f.Feature+": "+f.Message)
	}
	want := []string{
		`config: Unknown variable: There is no variable named "NOMAD_PORT_https". Did you mean "NOMAD_PORT_http"? In ` +
			`config args[1]. The task fails to start.`,
		`config: Invalid template control keyword: "http_code" is not a valid template control keyword. In config ` +
			`args[3]. The task fails to start. For a shell's own braces, write $$${ and %%%{.`,
		`config: Unclosed template interpolation sequence: There is no closing brace for this interpolation sequence ` +
			`before the end of the file. This might be caused by incorrect nesting inside the given expression. In ` +
			`config args[4]. The task fails to start. For a shell's own braces, write $$${ and %%%{.`,
		`config: Unsupported attribute: This object does not have an attribute named "none". In config args[2]. The task ` +
			`fails to start, unless the machine's metadata has its ${meta.…} by then (nomad node meta apply).`,
		`env: ATTR refers to ${attr.kernel.nam}, which does not exist: it stays as it is written`,
		`env: PORT refers to ${NOMAD_PORT_https}, which does not exist: it stays as it is written`,
		`env: TOKEN refers to ${NOMAD_TOKEN_bank}, which does not exist: it stays as it is written`,
	}
	same.As(t, want, got)
}
