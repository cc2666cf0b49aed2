package processes_test

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
)

// hanging makes a program whose execution hangs for as long as the kernel lets the holder of a lease (45 seconds,
// mostly), which is this program. hangs is called when it does.
func (e *env) hanging() (path string, hangs func()) {
	e.t.Helper()
	path = filepath.Join(e.dir, "hanging")
	must.Program(e.t, path, []byte("#!/bin/sh\nexit 0\n"))
	f, err := os.Open(path)
	must.OK(e.t, err)
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, unix.SIGIO)
	e.t.Cleanup(func() {
		signal.Stop(broken)
		f.Close()
	})
	must.OK(e.t, os.Chmod(path, 0o755))
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		e.t.Skip("no lease can be had here:", err)
	}
	return path, func() {
		e.t.Helper()
		select {
		case <-broken:
		case <-e.t.Context().Done():
			e.t.Fatal("nothing executes it")
		}
	}
}

// TestAProgramThatHangs while it is executed makes nobody wait but who started it, and is killed when that is given up.
func TestAProgramThatHangs(t *testing.T) {
	e := newLocal(t, processes.Config{})
	r := e.fifo()
	e.start(e.shell("noisy", `while [ ! -e go ]; do sleep 0.01; done; head -c 300000 /dev/zero; echo written >$FIFO; `+
		`exec sleep 1000`))
	path, hangs := e.hanging()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var over atomic.Bool
	failure := make(chan error, 1)
	go func() {
		_, err := e.Start(ctx, e.spec("t", path))
		over.Store(true)
		failure <- err
	}()
	hangs()

	must.OK(t, os.WriteFile(filepath.Join(e.dir, "go"), nil, 0o644))
	if line := proctest.ReadLine(t, r); line != "written" { // more than a pipe holds, so it has been read
		t.Errorf("the fifo says %q", line)
	}
	spec := e.beside("echo here")
	spec.Task = "noisy"
	if got, err := e.Exec(t.Context(), spec); err != nil || string(got.Output) != "here\n" {
		t.Errorf("a program beside another task: %+v, %v", got, err)
	}
	e.start(e.shell("other", "exit 3"))
	if exit := e.wait("other"); exit.ExitCode != 3 {
		t.Errorf("another task: %+v", exit)
	}
	must.OK(t, e.Signal(t.Context(), proctest.Latest(t, e, "noisy"), unix.SIGTERM))
	if exit := e.wait("noisy"); exit.Signal != int(unix.SIGTERM) {
		t.Errorf("a task that was signalled: %+v", exit)
	}
	e.killTree("noisy")
	if over.Load() {
		t.Error("all that was waiting for the program that hangs")
	}

	cancel()
	if err := <-failure; !errors.Is(err, context.Canceled) {
		t.Error("the start that was given up:", err)
	}
	e.start(e.shell("t", "exit 4"))
	if exit := e.wait("t"); exit.ExitCode != 4 {
		t.Errorf("the task's next process: %+v", exit)
	}
}

// TestCloseEndsAStartThatHangs, and a program beside a task that does.
func TestCloseEndsAStartThatHangs(t *testing.T) {
	for _, name := range []string{"start", "exec"} {
		t.Run(name, func(t *testing.T) {
			e := newLocal(t, processes.Config{})
			status := e.start(e.shell("other", `exec sleep 1000`))
			path, hangs := e.hanging()
			failure := make(chan error, 1)
			go func() {
				var err error
				if name == "start" {
					_, err = e.Start(t.Context(), e.spec("t", path))
				} else {
					_, err = e.Exec(t.Context(), drivers.ExecSpec{Spec: drivers.Spec{Task: "other", Path: path, Dir: "/"}})
				}
				failure <- err
			}()
			hangs()
			must.OK(t, e.Close())
			if err := <-failure; !errors.Is(err, drivers.ErrClosed) && !errors.Is(err, drivers.ErrNotRunning) {
				t.Error(err)
			}
			if proctest.Alive(status.PID) {
				t.Error("a task has outlived Close")
			}
		})
	}
}

// TestAHugeProgramHeader costs little, whatever a program's file says of itself.
func TestAHugeProgramHeader(t *testing.T) {
	const sections = 8 << 20 // 512 MiB of them
	const interpreter = "/no/such/loader"
	header := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: 64,
		Phoff: 64, Phentsize: 56, Phnum: 1, Shoff: 4096, Shentsize: 64, Shnum: 0, // the first section says how many there are
	}
	prog := elf.Prog64{Type: uint32(elf.PT_INTERP), Off: 512, Filesz: uint64(len(interpreter) + 1),
		Memsz: uint64(len(interpreter) + 1)}
	e := newLocal(t, processes.Config{})
	path := filepath.Join(e.dir, "huge")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	must.OK(t, err)
	write := func(at int64, v any) {
		text, err := binary.Append(nil, binary.LittleEndian, v)
		if err == nil {
			_, err = f.WriteAt(text, at)
		}
		must.OK(t, err)
	}
	write(0, header)
	write(64, prog)
	write(512, []byte(interpreter+"\x00"))
	write(4096, elf.Section64{Size: sections})
	must.OK(t, errors.Join(f.Truncate(4096+sections*64), f.Close()))
	most := func(who int) int64 {
		var usage unix.Rusage
		must.OK(t, unix.Getrusage(who, &usage))
		return usage.Maxrss
	}
	before := max(most(unix.RUSAGE_SELF), most(unix.RUSAGE_CHILDREN)) // the race detector's memory, too
	_, err = e.Start(t.Context(), e.spec("t", path))
	if start, ok := errors.AsType[*drivers.StartError](err); !ok || !strings.Contains(start.Reason, interpreter) {
		t.Error(err)
	}
	for who, name := range map[int]string{unix.RUSAGE_SELF: "this program",
		unix.RUSAGE_CHILDREN: "the process that was to become it"} {
		if got := most(who); got > max(400<<10, before+100<<10) {
			t.Errorf("%s took %d KiB at most, and %d before", name, got, before)
		}
	}
}
