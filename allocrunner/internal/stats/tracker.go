package stats

import (
	"time"

	"taskapi/internal/proc"
)

// tracker is what is remembered of one run of a task from sample to sample.
type tracker struct {
	pid   int // of the root process
	start uint64

	at     time.Time // of the latest sample, zero for none
	source string    // of its CPU time, empty for the processes
	cpu    cpuReading
	procs  map[int]proc.Usage // the processes as they were then, by number
}

// measurement is one task in one sample.
type measurement struct {
	sure      bool          // cpu is known
	cpu       cpuUse        // of the task
	throttled *throttling   // nil where nothing is known
	memory    memoryReading // of the task
	procs     []procUse
}

// procUse is one process in one sample.
type procUse struct {
	proc.Usage
	use  cpuUse
	swap uint64
}

// cpuUse is CPU time in relation to the time in which it was used: 1 is one CPU, all the time.
type cpuUse struct{ user, system float64 }

func (c cpuUse) percent() float64 { return 100 * (c.user + c.system) }

// sinceStart is the use of a process, or of a tree of them, whose age is known to a hundredth of a second: it may be older by that.
func sinceStart(t proc.CPUTime, age time.Duration) cpuUse { return useOf(t, age+10*time.Millisecond) }

func useOf(t proc.CPUTime, window time.Duration) cpuUse {
	if window <= 0 {
		return cpuUse{}
	}
	return cpuUse{t.User.Seconds() / window.Seconds(), t.System.Seconds() / window.Seconds()}
}

// measure takes the task's part of a sample.
func (t *tracker) measure(now time.Time, members []proc.Usage, from sources) measurement {
	ticks := proc.UptimeTicks()
	window := now.Sub(t.at) // since the latest sample
	if t.at.IsZero() || window > LongestWindow {
		window = 0
	}
	procs := make(map[int]proc.Usage, len(members))
	for _, p := range members {
		procs[p.PID] = p
	}
	source, reading := from.readCPU()
	m := measurement{memory: from.readMemory(), throttled: reading.throttled, procs: t.eachUse(members, from.swap, ticks, window)}
	m.cpu, m.sure = t.use(source, reading, procs, ticks, window)
	t.at, t.source, t.cpu, t.procs = now, source.name, reading, procs
	return m
}

// eachUse returns what each process has used since the latest sample, or since its start.
func (t *tracker) eachUse(members []proc.Usage, swapped map[int]uint64, ticks uint64, window time.Duration) []procUse {
	uses := make([]procUse, len(members))
	for i, p := range members {
		uses[i] = procUse{Usage: p, swap: swapped[p.PID]}
		if before, ok := t.procs[p.PID]; window > 0 && ok && before.Start == p.Start {
			uses[i].use = useOf(p.CPU.Since(before.CPU), window)
		} else if age := p.Age(ticks); age <= LongestWindow {
			uses[i].use = sinceStart(p.CPU, age)
		}
	}
	return uses
}

// use returns what the task has used since the latest sample, or else since its start; it is not known when both were too long ago.
func (t *tracker) use(source namedCPU, reading cpuReading, procs map[int]proc.Usage, ticks uint64, window time.Duration) (use cpuUse, known bool) {
	if window > 0 && source.name == t.source {
		if source.name == "" {
			return useOf(t.used(procs, ticks, window), window), true
		}
		return useOf(reading.Since(t.cpu.CPUTime), window), true
	}
	age := proc.Stat{Start: t.start}.Age(ticks)
	if t.start == 0 || age > LongestWindow || !source.fromStart {
		return cpuUse{}, false
	}
	if source.name == "" {
		return sinceStart(total(procs), age), true
	}
	return sinceStart(reading.CPUTime, age), true
}

// used returns the CPU time that the processes have used since the latest sample: the larger of two amounts, of which neither is too large. The first
// is that of the processes that are there now. The second takes in the dead ones, for their parents have their times since they were
// waited for; but the times of what was known and has died are taken off, since a parent that did not wait has none of it.
func (t *tracker) used(procs map[int]proc.Usage, ticks uint64, window time.Duration) proc.CPUTime {
	var living proc.CPUTime
	for pid, p := range procs {
		before, ok := t.procs[pid]
		switch {
		case ok && before.Start == p.Start:
			living = living.Add(p.CPU.Since(before.CPU))
		case p.Age(ticks) <= window: // else it has come into the tree, and used that before
			living = living.Add(p.CPU)
		}
	}
	whole := total(procs).Since(total(t.procs))
	if whole.Sum() > living.Sum() {
		return whole
	}
	return living
}

// total returns the CPU time of processes and of their dead children.
func total(procs map[int]proc.Usage) proc.CPUTime {
	var sum proc.CPUTime
	for _, p := range procs {
		sum = sum.Add(p.CPU).Add(p.Children)
	}
	return sum
}
