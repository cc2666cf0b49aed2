package proc

import "golang.org/x/sys/unix"

// CPUs returns the numbers of the CPUs on which this process may run, in their order.
func CPUs() (cpus []int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}
