package templates_test

import (
	"os"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/disktest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// never is a splay that no test waits for: its random part is below a minute once in a million times.
const never = 1_000_000 * time.Minute

// atOnce takes the splay away.
func atOnce(saved *interfaces.Saved) {
	saved.Alloc.Job.TaskGroups[0].Tasks[0].Templates[0].Splay = new(time.Duration(0))
}

// TestResumeOfAChange: a runner that is killed, or leaves, between the writing of a file and its change_mode leaves the
// change_mode to the next runner, which acts once.
func TestResumeOfAChange(t *testing.T) {
	t.Parallel()
	for mode, acted := range map[string]string{"signal": "hup", "restart": "up", "script": "script"} {
		for _, killed := range []bool{true, false} {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				s := newShared(t)
				s.put("v", "a", "1")
				change := follows(mode)
				change.Splay = new(never)
				r := s.run(says, change)
				r.untilFile("local/said", "up 1\n")
				r.until("running", func() bool { return r.runner.Alloc().ClientStatus == api.AllocClientStatusRunning })
				s.put("v", "a", "2")
				r.untilFile("local/x", "2")
				atKill := must.Get(r.state.Load())(t)
				r.edit = func(saved *interfaces.Saved) {
					if killed {
						*saved = *atKill
					}
					atOnce(saved)
				}
				r.resume(func() {})
				want := "up 1\n" + acted + " 2\n"
				r.untilFile("local/said", want)
				r.resume(func() {})
				s.put("v", "a", "3")
				r.untilFile("local/said", want+acted+" 3\n")
			})
		}
	}
}

// TestResumeOfAChangeThatTheTaskCannotRead: as above, for a file of another user.
func TestResumeOfAChangeThatTheTaskCannotRead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to others")
	}
	t.Parallel()
	s := newShared(t)
	s.dir = must.Get(os.MkdirTemp("", ""))(t)
	t.Cleanup(func() { _ = os.RemoveAll(s.dir) })
	must.OK(t, os.Chmod(s.dir, 0o711)) // for nobody
	s.put("v", "a", "1")
	change := follows("signal")
	change.Splay = new(never)
	change.Uid, change.Gid, change.Perms = new(0), new(0), new("0400")
	r := s.runTask(&api.Task{Name: "main", Driver: "raw_exec", User: "nobody", Templates: []*api.Template{change},
		Config: map[string]any{"command": "/bin/sh", "args": []any{"-c",
			`trap 'echo hup >> local/said' HUP; echo up >> local/said; while :; do sleep 0.05; done`}}})
	r.untilFile("local/said", "up\n")
	r.until("running", func() bool { return r.runner.Alloc().ClientStatus == api.AllocClientStatusRunning })
	s.put("v", "a", "2")
	r.untilFile("local/x", "2")
	r.edit = atOnce
	r.resume(func() {})
	r.untilFile("local/said", "up\nhup\n")
}

// TestResumeOfAnUnwrittenChange: a runner that was killed before it wrote a file leaves nothing to do when the value is
// the old one again.
func TestResumeOfAnUnwrittenChange(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("v", "a", "1")
	change := follows("signal")
	change.Splay = new(never)
	r := s.run(says, change)
	r.untilFile("local/said", "up 1\n")
	s.put("v", "a", "2")
	r.untilFile("local/x", "2")
	r.edit = atOnce
	r.resume(func() {
		must.OK(t, os.WriteFile(r.path("local/x"), []byte("1"), 0o600))
		s.put("v", "a", "1")
	})
	s.put("v", "a", "3")
	r.untilFile("local/said", "up 1\nhup 3\n")
}

// TestResumeOfFirstScripts: the next runner runs a script with run_on_first_render that has not run to its end, once.
func TestResumeOfFirstScripts(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	change := template("local/x", "1", "script")
	change.ChangeScript = &api.ChangeScript{Command: new("/bin/sh"), RunOnFirstRender: new(true), Timeout: new(deadline),
		Args: []string{"-c", `echo yes > local/begun; until test -e local/go; do sleep 0.05; done; echo ran >> local/ran`}}
	r := s.run("sleep 1000", change)
	r.untilFile("local/begun", "yes\n")
	r.resume(func() { must.OK(t, os.WriteFile(r.path("local/go"), nil, 0o600)) })
	r.untilFile("local/ran", "ran\n")
	r.untilEvent("Template successfully ran script")
	r.resume(func() {})
	r.untilFile("local/x", "1")
	r.untilFile("local/ran", "ran\n")
}

// TestFullDisk: a running task keeps its file, says why, and gets the new one when there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for what, words := range map[string]string{"directory": `Template: Waiting: write "local/x": `,
		"state": "Template: Waiting: the pending change_mode can't be saved: "} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			small := disktest.Mount(t, "size=4m")
			s := newShared(t)
			if s.dir = small.Dir; what == "state" {
				s.dir, s.stateDir = "", small.Dir
			}
			s.put("v", "a", "1")
			r := s.run(`trap 'echo hup > local/hup' HUP; echo up > local/up; while :; do sleep 0.05; done`, follows("signal"))
			r.untilFile("local/up", "up\n")
			r.until("running", func() bool { return r.runner.Alloc().ClientStatus == api.AllocClientStatusRunning })
			small.Fill()
			s.put("v", "a", "2")
			r.untilEvent(words)
			r.untilEvent("no space left on device")
			r.untilFile("local/x", "1")
			same.Fails(t, same.Err(os.Stat(r.path("local/hup"))), "it acted on a file that was not written")
			small.Empty()
			r.untilFile("local/x", "2")
			r.untilFile("local/hup", "hup\n")
		})
	}
}
