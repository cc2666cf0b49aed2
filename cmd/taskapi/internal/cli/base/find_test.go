package base

import (
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
)

// saved is an allocation that a test writes into a data directory.
type saved struct {
	id, job string
	tasks   []string
	ended   bool
}

// The directories of TestFind: root's, and one's own.
var (
	ofRoot = []saved{
		{"11111111-0000-0000-0000-000000000000", "shop", []string{"server", "proxy"}, false},
		{"1111aaaa-0000-0000-0000-000000000000", "shop", []string{"server", "proxy"}, true},
		{"22222222-0000-0000-0000-000000000000", "batch", []string{"once"}, true},
		{"33333333-0000-0000-0000-000000000000", "batch", []string{"once"}, true},
	}
	ofUser = []saved{
		{"44444444-0000-0000-0000-000000000000", "web", []string{"web", "sidecar"}, false},
		{"55555555-0000-0000-0000-000000000000", "one", []string{"one"}, false},
		{"66666666-0000-0000-0000-000000000000", "proxy", []string{"p"}, false},
		{"77777777-0000-0000-0000-000000000000", "beef", []string{"x"}, false},
		{"beef0000-0000-0000-0000-000000000000", "cow", []string{"y"}, true},
	}
)

// newPlace makes a data directory with allocations, each made later than the one before.
func newPlace(t *testing.T, all []saved) Layout {
	t.Helper()
	l := Layout{Dir: datadir.Dir(t.TempDir()), version: "1"}
	for i, s := range all {
		group := &api.TaskGroup{Name: new("g")}
		states := map[string]interfaces.SavedTask{}
		for j, task := range s.tasks {
			group.Tasks = append(group.Tasks, &api.Task{Name: task})
			states[task] = interfaces.SavedTask{State: &api.TaskState{State: map[bool]string{true: "running",
				false: "dead"}[j == 0]}}
		}
		lock := must.Get(l.Lock(s.id, l.Store("1"), slog.New(slog.DiscardHandler)))(t)
		alloc := &api.Allocation{ID: s.id, Name: s.job + ".g[0]", JobID: s.job, TaskGroup: "g", ClientStatus: "running",
			CreateTime: int64(i + 1),
			Job:        &api.Job{ID: &s.job, TaskGroups: []*api.TaskGroup{group}}}
		if s.ended {
			alloc.ClientStatus = "complete"
		}
		must.OK(t, lock.State().Put(interfaces.Saved{Alloc: alloc, Tasks: states, Terminal: s.ended}))
		must.OK(t, lock.Close())
	}
	return l
}

// TestFind says what each kind of command finds by which arguments, in two data directories at once.
func TestFind(t *testing.T) {
	user, root := newPlace(t, ofUser), newPlace(t, ofRoot)
	empty := Layout{Dir: datadir.Dir(t.TempDir())}
	logs, restart, exec, stop := ToRead, ToChange, ToChange, ToEnd
	logs.Tasks, restart.Tasks, exec.Tasks = AnyTasks, AnyTasks, OneTask
	both, alone := []Layout{user, root}, []Layout{root}
	for _, tc := range []struct {
		name   string
		places []Layout
		sought Sought
		args   string
		want   string // the beginning of the ID, and the task
		err    string
		usage  bool
	}{
		{"the only one that runs", alone, ToChange, "", "11111111", "", false},
		{"none runs", []Layout{empty}, ToRead, "", "", "no allocation runs in ", false},
		{"several run", both, ToRead, "", "",
			"5 allocations run: give one of\n  77777777  beef.g[0]   tasks x              running\n  66666666  proxy.g[0]  " +
				"tasks p ", true},
		{"an ID in capitals", both, ToChange, "BEEF0000", "beef0000", "", false},
		{"a whole ID", both, ToRemove, "beef0000-0000-0000-0000-000000000000", "beef0000", "", false},
		{"the beginning of two", alone, ToRead, "1111", "",
			`"1111" may be any of 2 allocations: give the name or the ID of one`, true},
		{"a job and the beginning of an ID", both, ToRead, "beef", "", `"beef" may be any of 2 allocations`, true},
		{"a job that runs again", both, ToChange, "shop", "11111111", "", false},
		{"which no name continues", both, ToRemove, "shop", "", `"shop" may be any of 2 allocations`, true},
		{"the name of an allocation", both, ToChange, "web.g[0]", "44444444", "", false},
		{"the name of number 0", both, ToChange, "web.g", "44444444", "", false},
		{"the name of another number", both, ToRead, "web.g[1]", "", `no allocation, job or task "web.g[1]" in `, false},
		{"a job that has ended, to read", both, ToRead, "batch", "33333333", "", false},
		{"to change", both, ToChange, "batch", "",
			`"batch" does not run: the latest allocation of job "batch", 33333333, has ended (complete); 'taskapi status ` +
				`33333333' shows it, and 'taskapi run JOBFILE' begins a new one`,
			false},
		{"what is not there", both, ToRead, "shopp", "", `no allocation, job or task "shopp" in ` + string(user.Dir) +
			" or " + string(root.Dir), false},
		{"a job that is a task elsewhere", both, restart, "proxy", "", `"proxy" may be any of 2 allocations`, true},
		{"to read, too", both, logs, "proxy", "", `"proxy" may be any of 2 allocations`, true},
		{"a task", both, restart, "server", "11111111 server", "", false},
		{"a task, for its allocation", both, ToRead, "server", "11111111", "", false},
		{"a task, to change its allocation", both, ToChange, "server", "",
			`"server" is a task of allocation 11111111 (job "shop"), and this is for a whole allocation`, true},
		{"a task, to stop it", both, stop, "server", "",
			`"server" is a task of allocation 11111111 (job "shop"): give 11111111 for the whole allocation, or 11111111 ` +
				`server for the task`, true},
		{"a job and its only task, to stop", both, stop, "one", "55555555", "", false},
		{"with its task", both, stop, "one one", "55555555 one", "", false},
		{"a job and its own task, to read", both, logs, "web", "44444444", "", false},
		{"to change", both, restart, "web", "",
			`"web" is a job and one of its tasks: give 44444444 for all tasks of the allocation, or 44444444 web for the task`,
			true},
		{"to enter", both, exec, "web", "44444444 web", "", false},
		{"to stop", both, stop, "web", "44444444", "", false},
		{"a job and its only task", both, restart, "one", "55555555 one", "", false},
		{"a job and a task", both, restart, "proxy p", "66666666 p", "", true},
		{"a task of two that runs, to enter", both, exec, "shop", "11111111 server", "", false},
		{"a task that it has not", both, restart, "shop x", "",
			`allocation 11111111 (job "shop") has no task "x": give one of server, proxy`, false},
		{"a task twice", both, restart, "web web", "44444444 web", "", false},
		{"too much", both, ToChange, "web web", "", `unexpected argument "web"`, true},
	} {
		t.Run(tc.name+" "+tc.args, func(t *testing.T) {
			f := &Finder{Places: tc.places}
			got, err := f.Find(t.Context(), strings.Fields(tc.args), tc.sought)
			if tc.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tc.err) || IsUsage(err) != tc.usage {
					t.Errorf("found %s %s, %v; want the error %s", got.ID, got.Task, err, tc.err)
				}
				return
			}
			if err != nil || strings.TrimSpace(got.ID[:8]+" "+got.Task) != tc.want {
				t.Errorf("found %s %s, %v; want %s", got.ID, got.Task, err, tc.want)
			}
		})
	}
}

// TestMeansTasks says which arguments of stop are several allocations, and which are an allocation and its tasks.
func TestMeansTasks(t *testing.T) {
	f := &Finder{Places: []Layout{newPlace(t, ofUser), newPlace(t, ofRoot)}}
	must.OK(t, f.Look(t.Context(), nil))
	for args, want := range map[string]string{
		"shop server":      "true",
		"shop server nope": `no allocation, job or task "nope": the tasks of "shop" are proxy, server`,
		"shop server once": `some of server, once are tasks of "shop", and others are not: give allocations, ` +
			`or one and its tasks`,
		"1111 server":      "true",
		"web.g[0] sidecar": "true",
		"web web sidecar":  "true", // the first task has the job's name
		"web shop":         "false",
		"web one beef":     "false",
		"batch once":       "true",  // it has ended, which is said later
		"server proxy":     "false", // tasks alone name allocations, which is refused later
		"shop nope":        `no allocation, job or task "nope": the tasks of "shop" are proxy, server`,
		"shop server proxy": `"proxy" is a task of "shop" and a name of allocation 66666666: ` +
			"give --alloc shop proxy for the task, or 66666666 for the allocation",
	} {
		words := strings.Fields(args)
		means, err := f.meansTasks(words[0], words[1:])
		got := strconv.FormatBool(means)
		if err != nil {
			got = err.Error()
		}
		if got != want || err != nil && IsUsage(err) == strings.HasPrefix(want, "no ") {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

// TestFinderPlaces looks where the flag or the environment says, or at every directory of this user that there is.
func TestFinderPlaces(t *testing.T) {
	given, own := t.TempDir(), t.TempDir()
	w := Environment{Stdout: io.Discard, Env: []string{"XDG_STATE_HOME=" + own}}
	newIn := func(dir string) { // an allocation of it
		must.OK(t, datadir.Dir(dir).Make())
	}
	newIn(own + "/taskapi")
	f, err := NewFinder(w, given)
	if err != nil || len(f.Places) != 1 || string(f.Places[0].Dir) != given {
		t.Errorf("with --data-dir: %v, %v", f, err)
	}
	if f, err = NewFinder(w, ""); err != nil {
		t.Fatal(err)
	}
	if dirs := f.Dirs(); !strings.Contains(dirs, own+"/taskapi") {
		t.Errorf("without: %s", dirs)
	}
	w.Env = append(w.Env, DataDirEnv+"="+given)
	if f, err = NewFinder(w, ""); err != nil || f.Dirs() != given {
		t.Errorf("with %s: %v, %v", DataDirEnv, f, err)
	}
}
