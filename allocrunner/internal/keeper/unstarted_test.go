package keeper_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// failing returns a program that becomes a keeper only when the file beside it is gone, and otherwise ends as said.
func failing(t *testing.T, ends string) (exe, fails string) {
	t.Helper()
	dir := t.TempDir()
	exe, fails = filepath.Join(dir, "keeper"), filepath.Join(dir, "fails")
	text := fmt.Sprintf("#!/bin/sh\nif [ -e %s ]; then %s; fi\nexec /proc/%d/exe \"$@\"\n", fails, ends, os.Getpid())
	must.Program(t, exe, []byte(text))
	must.OK(t, os.WriteFile(fails, nil, 0o600))
	return exe, fails
}

// TestAKeeperThatDiesWhileItStarts costs the starts of tasks that come to it, and nothing else: the next one tries
// again.
func TestAKeeperThatDiesWhileItStarts(t *testing.T) {
	dir := t.TempDir()
	cfg := supervised(dir)
	var fails string
	cfg.Exe, fails = failing(t, "echo the disk is on fire >&2; kill -KILL $$")
	s, err := keeper.Supervise(t.Context(), cfg, true)
	if _, known := s.Found("t"); err != nil || known {
		t.Fatal(known, err)
	}
	for range 2 {
		_, err := s.Start(t.Context(), script(dir, "t", "exit 3"))
		const want = "start keeper: it ended without a word (signal: killed): the disk is on fire"
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	same.Error(t, nil, same.Err(s.KillTree(t.Context(), drivers.ProcessID{Task: "t"})), "kill what does not run")
	same.Fails(t, same.Err2(s.View(t.Context())), "there is something to see")
	must.OK(t, os.Remove(fails))
	run(t, s, script(dir, "t", "exit 3"))
	same.As(t, 3, must.Get(s.Wait(t.Context(), "t"))(t).ExitCode)
	must.OK(t, s.Close())
}

// TestResumedWithoutRoomForAKeeper: how the tasks ended that the last keeper had is known all the same.
func TestResumedWithoutRoomForAKeeper(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	run(t, c, shell(dir, "t", "exit 4"))
	must.Get(c.Wait(t.Context(), "t"))(t)
	for last, err := keeper.Last(dir); err != nil || last.Tasks[0].Exit == nil; last, err = keeper.Last(dir) {
	}
	must.OK(t, c.Kill())
	cfg := supervised(dir)
	cfg.Exe, _ = failing(t, "exit 7")
	for range 2 {
		s, err := keeper.Supervise(t.Context(), cfg, false)
		if known, _ := s.Found("t"); err != nil || known.Exit == nil || known.Exit.ExitCode != 4 {
			t.Fatal(known, err)
		}
		same.As(t, 4, must.Get(s.Wait(t.Context(), "t"))(t).ExitCode)
		must.OK(t, s.Detach())
	}
}

// TestWhatAKeeperLacks is named by what it left in its log.
func TestWhatAKeeperLacks(t *testing.T) {
	self := copyOfTests(t)
	for name, tc := range map[string]struct{ ends, want string }{
		"processes": {
			`exec setpriv --reuid 54321 --regid 54321 --clear-groups prlimit --nproc=1 ` + self + ` "$@"`,
			"RLIMIT_NPROC",
		},
		"memory":  {`exec prlimit --as=120000000 ` + self + ` "$@"`, "RLIMIT_AS"},
		"nothing": {"exit 9", "(exit status 9): keeper.log says nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 && name == "processes" {
				t.Skip("takes root to be a user with no other process")
			}
			if _, err := exec.LookPath("prlimit"); err != nil {
				t.Skip(err)
			}
			exe, _ := failing(t, tc.ends)
			_, _, err := keeper.Open(t.Context(), keeper.Config{Dir: t.TempDir(), Exe: exe})
			same.Says(t, nil, tc.want, err)
		})
	}
}

// TestNobodyIsStartedBesideAKeeperThatCantBeSeen: there is nothing to try again.
func TestNobodyIsStartedBesideAKeeperThatCantBeSeen(t *testing.T) {
	dir := t.TempDir()
	lockLog(t, dir)
	same.Says(t, nil, "can't be seen", same.Err(keeper.Supervise(t.Context(), supervised(dir), true)))
}
