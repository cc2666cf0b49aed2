package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/disk"
)

const (
	sharedWaiters = 500
	sharedListed  = 1000   // entries of a list
	sharedMost    = 10_000 // entries whose memory is measured
	sharedValue   = 1000   // bytes
	sharedSteps   = 200    // puts and gets of a round
	sharedPrefix  = "watched/"
)

// A sharedReport is what the store of allocations costs that share a data directory, in two processes of this program.
type sharedReport struct {
	Floor, Put figure        // microseconds: a write with its sync to a file of the same disk, and a commit
	Ratio      float64       // of these medians
	Get        figure        // microseconds: of what another process has just written
	List       figure        // milliseconds: of 1,000 entries
	WakeMedian figure        // milliseconds from before a commit until half of the waiters in another process have it
	WakeLast   figure        // and the last
	Idle       figure        // percent of a core of a process with 500 waiters, and a lease to look after
	PerEntries float64       // bytes (PSS) of a process for 1,000 entries
	Waiter     float64       // and for each waiter
	Opening    time.Duration // of a store of 10,000 entries
}

// measureShared measures the store with values of 1 KB.
func measureShared(ctx context.Context, env *environment, o options) (_ *sharedReport, err error) {
	s := &shared{dir: env.path(".cluster")}
	s.Store = disk.New(s.dir)
	defer s.Close()
	lease, err := s.Hold(ctx, "bench")
	if err != nil {
		return nil, err
	}
	defer lease.Close()
	if s.other, err = startShared(env, s.dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.other.stop()) }()
	r := &sharedReport{}
	for _, step := range []func(context.Context, *environment, options, *sharedReport) error{s.times, s.lists, s.wakes, s.memory} {
		if err := step(ctx, env, o, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// shared is a store, and another process that has it open.
type shared struct {
	*disk.Store
	dir   string
	other *sharedProcess
}

func (s *shared) put(ctx context.Context, key string, value []byte) error {
	_, err := s.Commit(ctx, cluster.Txn{Then: []cluster.Operation{{Key: key, Value: value}}})
	return err
}

// timed returns how long each of so many steps takes, in microseconds: their median.
func timed(steps int, do func() error) (float64, error) {
	var all []float64
	for range steps {
		began := time.Now()
		if err := do(); err != nil {
			return 0, err
		}
		all = append(all, float64(time.Since(began))/1e3)
	}
	return median(all), nil
}

// times measures commits and reads, the floor in turn with them.
func (s *shared) times(ctx context.Context, env *environment, o options, r *sharedReport) error {
	f, err := os.Create(env.path(".floor"))
	if err != nil {
		return err
	}
	defer f.Close()
	value, at := make([]byte, sharedValue), int64(0)
	var floors, puts, gets []float64
	for range o.rounds {
		floor, err := timed(sharedSteps, func() error {
			at += sharedValue
			_, err := f.WriteAt(value, at)
			return errors.Join(err, unix.Fdatasync(int(f.Fd())))
		})
		if err != nil {
			return err
		}
		put, err := timed(sharedSteps, func() error { return s.put(ctx, "one", value) })
		if err != nil {
			return err
		}
		reader := disk.New(s.dir) // which has to find out what the other has written
		get, err := func() (float64, error) {
			defer reader.Close()
			var all []float64
			for range sharedSteps {
				if err := s.put(ctx, "one", value); err != nil {
					return 0, err
				}
				one, err := timed(1, func() error { _, _, err := reader.Get(ctx, "one"); return err })
				if err != nil {
					return 0, err
				}
				all = append(all, one)
			}
			return median(all), nil
		}()
		if err != nil {
			return err
		}
		floors, puts, gets = append(floors, floor), append(puts, put), append(gets, get)
	}
	r.Floor, r.Put, r.Get = figureOf(floors), figureOf(puts), figureOf(gets)
	r.Ratio = r.Put.Median / r.Floor.Median
	return nil
}

// fill writes so many entries.
func (s *shared) fill(ctx context.Context, prefix string, n int) error {
	value := make([]byte, sharedValue)
	for i := 0; i < n; {
		var txn cluster.Txn
		for ; i < n && len(txn.Then) < cluster.MaxOperations; i++ {
			txn.Then = append(txn.Then, cluster.Operation{Key: fmt.Sprintf("%s%06d", prefix, i), Value: value})
		}
		if _, err := s.Commit(ctx, txn); err != nil {
			return err
		}
	}
	return nil
}

func (s *shared) lists(ctx context.Context, _ *environment, o options, r *sharedReport) error {
	if err := s.fill(ctx, "listed/", sharedListed); err != nil {
		return err
	}
	var all []float64
	for range o.rounds {
		list, err := timed(1, func() error {
			page, err := s.List(ctx, cluster.Span{Prefix: "listed/"})
			if err == nil && len(page.Entries) != sharedListed {
				err = fmt.Errorf("%d entries", len(page.Entries))
			}
			return err
		})
		if err != nil {
			return err
		}
		all = append(all, list/1e3)
	}
	r.List = figureOf(all)
	return nil
}

// wakes measures the waiters of the other process, while nothing changes and when something does.
func (s *shared) wakes(ctx context.Context, _ *environment, o options, r *sharedReport) error {
	before, err := s.other.rest()
	if err != nil {
		return err
	}
	var halves, lasts, idle []float64
	for n := range o.rounds {
		if _, err := s.other.ask("wait"); err != nil {
			return err
		}
		if err := o.rest(ctx); err != nil {
			return err
		}
		if n == 0 {
			waiting, err := s.other.rest()
			if err != nil {
				return err
			}
			r.Waiter = float64(waiting-before) / sharedWaiters
		}
		began, ran := time.Now(), ranTime(s.other.cmd.Process.Pid)
		if err := wait(ctx, o.of(waitRounds*time.Second)); err != nil {
			return err
		}
		idle = append(idle, 100*(ranTime(s.other.cmd.Process.Pid)-ran).Seconds()/time.Since(began).Seconds())
		from := monotonic()
		if err := s.put(ctx, sharedPrefix+"key", nil); err != nil {
			return err
		}
		answer, err := s.other.ask("woken")
		if err != nil {
			return err
		}
		var half, last int64
		if _, err := fmt.Sscan(answer, &half, &last); err != nil {
			return fmt.Errorf("the other process said %q: %w", answer, err)
		}
		halves, lasts = append(halves, float64(half-from)/1e6), append(lasts, float64(last-from)/1e6)
	}
	r.WakeMedian, r.WakeLast, r.Idle = figureOf(halves), figureOf(lasts), figureOf(idle)
	return nil
}

func (s *shared) memory(ctx context.Context, _ *environment, _ options, r *sharedReport) error {
	before, err := s.other.rest()
	if err != nil {
		return err
	}
	if err := s.fill(ctx, "more/", sharedMost); err != nil {
		return err
	}
	after, err := s.other.rest()
	if err != nil {
		return err
	}
	r.PerEntries = float64(after-before) / (sharedMost / 1000)
	late := disk.New(s.dir)
	defer late.Close()
	opening, err := timed(1, func() error { _, _, err := late.Get(ctx, "one"); return err })
	r.Opening = time.Duration(opening * 1e3)
	return err
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it exists
	return t.Nano()
}

// sharedProcess is another process that has the store open.
type sharedProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func startShared(env *environment, dir string) (*sharedProcess, error) {
	cmd := exec.Command(env.bare, "role-shared", dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &sharedProcess{cmd, stdin, bufio.NewReader(stdout)}, cmd.Start()
}

// ask sends the process a word and returns its answer.
func (p *sharedProcess) ask(word string) (string, error) {
	if _, err := fmt.Fprintln(p.stdin, word); err != nil {
		return "", err
	}
	answer, err := p.stdout.ReadString('\n')
	return strings.TrimSpace(answer), err
}

// rest returns the process's memory when it has collected its garbage.
func (p *sharedProcess) rest() (pss int64, err error) {
	if _, err := p.ask("rest"); err != nil {
		return 0, err
	}
	m, err := memoryOf([]int{p.cmd.Process.Pid})
	return m.PSS, err
}

// stop ends the process.
func (p *sharedProcess) stop() error { return errors.Join(p.stdin.Close(), p.cmd.Wait()) }

// sharedRole opens a store and does what it reads.
func sharedRole(ctx context.Context, args []string) error {
	s := disk.New(args[0])
	defer s.Close()
	var waiting sync.WaitGroup
	woken := make([]int64, sharedWaiters)
	words := bufio.NewScanner(os.Stdin)
	for words.Scan() {
		page, err := s.List(ctx, cluster.Span{Limit: 1})
		if err != nil {
			return err
		}
		answer := words.Text()
		switch answer {
		case "wait":
			for i := range woken {
				waiting.Go(func() {
					if _, err := s.Watch(ctx, sharedPrefix, page.Index); err == nil {
						woken[i] = monotonic()
					}
				})
			}
		case "woken":
			waiting.Wait()
			slices.Sort(woken)
			answer = fmt.Sprint(woken[len(woken)/2], woken[len(woken)-1])
		case "rest":
			debug.FreeOSMemory()
		}
		fmt.Println(answer)
	}
	return words.Err()
}

func (r *sharedReport) print(w io.Writer) {
	fmt.Fprintln(w, "what allocations share, values of 1 KB\tmedian (spread)")
	fmt.Fprintf(w, "a write and its sync, alone\t%s\n", r.Floor.in("us", 1, 0))
	fmt.Fprintf(w, "put\t%s, %.2f times that\n", r.Put.in("us", 1, 0), r.Ratio)
	fmt.Fprintf(w, "get, of what another process has just put\t%s\n", r.Get.in("us", 1, 0))
	fmt.Fprintf(w, "list of %d\t%s\n", sharedListed, r.List.in("ms", 1, 1))
	fmt.Fprintf(w, "put until half of %d waiters of another process have it\t%s\n", sharedWaiters, r.WakeMedian.in("ms", 1, 1))
	fmt.Fprintf(w, "and until all have\t%s\n", r.WakeLast.in("ms", 1, 1))
	fmt.Fprintf(w, "%d waiters at rest, of a core\t%s\n", sharedWaiters, r.Idle.in("%", 1, 3))
	fmt.Fprintf(w, "memory of 1,000 entries; of a waiter\t%.0f KB; %.1f KB\n", r.PerEntries/1e3, r.Waiter/1e3)
	fmt.Fprintf(w, "opening a store of %d\t%s\n\n", sharedMost, millis(r.Opening))
}
