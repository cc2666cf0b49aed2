package wire_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/wire"
	"taskapi/internal/must"
)

// TestJobOf: a job that the SDK has read is encoded as the Nomad server has encoded it. Empty values are left out,
// because the recorded answers lack them.
func TestJobOf(t *testing.T) {
	answers := must.Get(filepath.Glob("../../../allocrunner/jobspec/testdata/canonical/*.server.json"))(t)
	if len(answers) == 0 {
		t.Fatal("there are no recorded answers")
	}
	for _, answer := range answers {
		t.Run(filepath.Base(answer), func(t *testing.T) {
			recorded, job := must.Read(t, answer), &api.Job{}
			must.OK(t, json.Unmarshal(recorded, job))
			encoded := must.Get(json.Marshal(wire.JobOf(job)))(t)
			if diff := cmp.Diff(prune(t, recorded), prune(t, encoded)); diff != "" {
				t.Errorf("(-server +ours):\n%s", diff)
			}
		})
	}
}

// prune decodes JSON without the members that are empty.
func prune(t *testing.T, data []byte) any {
	t.Helper()
	var value any
	must.OK(t, json.Unmarshal(data, &value))
	return pruned(value)
}

func pruned(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, member := range v {
			if v[key] = pruned(member); v[key] == nil {
				delete(v, key)
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = pruned(v[i])
		}
		if len(v) == 0 {
			return nil
		}
	case string, bool, float64:
		if v == "" || v == false || v == 0.0 {
			return nil
		}
	}
	return value
}
