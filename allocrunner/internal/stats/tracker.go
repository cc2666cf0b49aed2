package stats

import (
	"time"

	"taskapi/internal/proc"
)

// tracker remembers one run of a task from sample to sample.
type tracker struct {
	pid   int // of the root process
	start uint64

	at     time.Time // of the latest sample, zero for none
	source string    // of its CPU time, empty for the processes
	cpu    cpuReading
	procs  map[int]proc.Stat // the processes at that time, by number
}

// measurement is one task in one sample.
type measurement struct {
	sure      bool          // cpu is known
	cpu       cpuUse        // of the task
	throttled *throttling   // nil when unknown
	memory    memoryReading // of the task
	procs     []procUse
}

// procUse is one process in one sample.
type procUse struct {
	proc.Stat
	use  cpuUse
	swap uint64
}

// cpuUse is CPU time in relation to the time in which it was used: 1 is one CPU, all the time.
type cpuUse struct{ user, system float64 }

func (c cpuUse) percent() float64 { return 100 * (c.user + c.system) }

// sinceStart returns the use of a process or a tree since its start. Its age is known to a hundredth of a second, and
// may be more by that much.
func sinceStart(t proc.CPUTime, age time.Duration) cpuUse { return useOf(t, age+10*time.Millisecond) }

func useOf(t proc.CPUTime, window time.Duration) cpuUse {
	if window <= 0 {
		return cpuUse{}
	}
	return cpuUse{t.User.Seconds() / window.Seconds(), t.System.Seconds() / window.Seconds()}
}

// measure takes the task's part of a sample.
func (t *tracker) measure(now time.Time, members []proc.Stat, from sources) measurement {
	ticks := proc.UptimeTicks()
	window := now.Sub(t.at) // since the latest sample
	if t.at.IsZero() || window > LongestWindow {
		window = 0
	}
	procs := make(map[int]proc.Stat, len(members))
	for _, p := range members {
		procs[p.PID] = p
	}
	source, reading := from.readCPU()
	m := measurement{memory: from.readMemory(), throttled: reading.throttled,
		procs: t.eachUse(members, from.swap, ticks, window)}
	m.cpu, m.sure = t.use(source, reading, procs, ticks, window)
	t.at, t.source, t.cpu, t.procs = now, source.name, reading, procs
	return m
}

// eachUse returns what each process has used since the latest sample, or since its start.
func (t *tracker) eachUse(members []proc.Stat, swapped map[int]uint64, ticks uint64, window time.Duration) []procUse {
	uses := make([]procUse, len(members))
	for i, p := range members {
		uses[i] = procUse{Stat: p, swap: swapped[p.PID]}
		if before, ok := t.procs[p.PID]; window > 0 && ok && before.Start == p.Start {
			uses[i].use = useOf(p.CPU.Since(before.CPU), window)
		} else if age := p.Age(ticks); age <= LongestWindow {
			uses[i].use = sinceStart(p.CPU, age)
		}
	}
	return uses
}

// use returns what the task has used since the latest sample, or else since its start. It is unknown when both were too
// long ago.
func (t *tracker) use(source cpuSource, reading cpuReading, procs map[int]proc.Stat, ticks uint64,
	window time.Duration) (use cpuUse, known bool) {
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

// used returns the CPU time that the processes have used since the latest sample. It is the larger of two amounts,
// neither of which is too large. The first is the time of the processes that are there now. The second includes the
// dead processes, whose parents have their times once they were waited for. From it, the times of known processes that
// have died are taken off: a parent that did not wait has none of them.
func (t *tracker) used(procs map[int]proc.Stat, ticks uint64, window time.Duration) proc.CPUTime {
	var living proc.CPUTime
	for pid, p := range procs {
		before, ok := t.procs[pid]
		switch {
		case ok && before.Start == p.Start:
			living = living.Add(p.CPU.Since(before.CPU))
		case p.Age(ticks) <= window: // an older one has joined the tree, and used its time before
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
func total(procs map[int]proc.Stat) proc.CPUTime {
	var sum proc.CPUTime
	for _, p := range procs {
		sum = sum.Add(p.CPU).Add(p.Children)
	}
	return sum
}
