package review_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/allocrunner/jobspec/review"
	"taskapi/internal/must"
)

// TestReadiness: the keys of meta that taskapi acts on, with values and in places that are wrong.
func TestReadiness(t *testing.T) {
	t.Parallel()
	const network = "network {\nport \"http\" {}\n}\n"
	job := func(group, meta string) string {
		return "job \"j\" {\ngroup \"g\" {\n" + group + "task \"t\" {\n" + raw + "meta {\n" + meta + "\n}\n}\n}\n}\n"
	}
	for _, c := range []struct {
		job  string
		want []string
	}{
		{job("", `taskapi_notify = "true"`), nil},
		{job("", `taskapi_notify = "maybe"`), []string{
			`refused: group "g" > task "t": meta: taskapi_notify is "maybe"; it must be "true" or "false"`}},
		{job("", `taskapi_watchdogs = "1s"`), []string{`warning: group "g" > task "t": meta: nothing acts on ` +
			`taskapi_watchdogs; there is: taskapi_notify, taskapi_watchdog, taskapi_ready_timeout, taskapi_listen`}},
		{job("meta {\ntaskapi_notify = \"true\"\n}\n", ``), []string{
			`warning: group "g" > task "t": meta: taskapi_notify has a meaning only in the meta block of a task`}},
		{job(network, `taskapi_listen = "http, http/udp"`), nil},
		{job(network, `taskapi_listen = "https"`), []string{`refused: group "g" > task "t": meta: taskapi_listen names ` +
			`"https", and the group's network block has no port with that label`}},
	} {
		parsed := must.Get(parse(t, c.job))(t)
		_, findings, err := review.Group(parsed, "", host)
		must.OK(t, err)
		var got []string
		for _, f := range findings {
			if f.Feature == "meta" {
				got = append(got, f.String())
			}
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s", c.job, cmp.Diff(c.want, got))
		}
	}
}
