package scrape

import (
	"bytes"
	"cmp"
	"strings"

	"github.com/VictoriaMetrics/metrics"
)

// family says what a metric of the library is. The library writes neither HELP nor TYPE, or HELP without a text.
type family struct{ name, kind, help string }

// libraryFamilies are the metrics of the Go runtime and of the process that the library writes. Prometheus reserves the
// ending _count for summaries and histograms.
var libraryFamilies = []family{
	{"go_cgo_calls_count", "untyped", "calls of C"},
	{"go_cpu_count", "untyped", "CPUs of the machine"},
	{"go_gc_cpu_seconds_total", "counter", "CPU time of the garbage collector"},
	{"go_gc_duration_seconds", "summary", "pauses of the garbage collector"},
	{"go_gc_forced_count", "untyped", "runs of the garbage collector that the program asked for"},
	{"go_gc_mark_assist_cpu_seconds_total", "counter", "CPU time in which goroutines helped the garbage collector"},
	{"go_gc_pauses_seconds", "histogram", "pauses of all goroutines for the garbage collector"},
	{"go_gomaxprocs", "gauge", "threads that may run Go code at the same time"},
	{"go_goroutines", "gauge", "goroutines"},
	{"go_info", "gauge", "1, with the version of Go"},
	{"go_info_ext", "gauge", "1, with the compiler and the platform"},
	{"go_memlimit_bytes", "gauge", "value of GOMEMLIMIT"},
	{"go_memstats_alloc_bytes", "gauge", "bytes of objects on the heap"},
	{"go_memstats_alloc_bytes_total", "counter", "bytes of all objects that were ever allocated"},
	{"go_memstats_buck_hash_sys_bytes", "gauge", "bytes of the tables of profiles"},
	{"go_memstats_frees_total", "counter", "freed objects"},
	{"go_memstats_gc_cpu_fraction", "gauge", "part of the CPU time that the garbage collector took, from 0 to 1"},
	{"go_memstats_gc_sys_bytes", "gauge", "bytes of the garbage collector's own data"},
	{"go_memstats_heap_alloc_bytes", "gauge", "bytes of objects on the heap, as go_memstats_alloc_bytes"},
	{"go_memstats_heap_idle_bytes", "gauge", "bytes of the heap without objects"},
	{"go_memstats_heap_inuse_bytes", "gauge", "bytes of the heap with objects"},
	{"go_memstats_heap_objects", "gauge", "objects on the heap"},
	{"go_memstats_heap_released_bytes", "gauge", "bytes of the heap that were returned to the system"},
	{"go_memstats_heap_sys_bytes", "gauge", "bytes of the heap that the runtime has from the system"},
	{"go_memstats_last_gc_time_seconds", "gauge", "Unix time of the garbage collector's last run"},
	{"go_memstats_lookups_total", "counter", "look-ups of pointers"},
	{"go_memstats_mallocs_total", "counter", "objects that were ever allocated"},
	{"go_memstats_mcache_inuse_bytes", "gauge", "used bytes of mcache structures"},
	{"go_memstats_mcache_sys_bytes", "gauge", "bytes of mcache structures that the runtime has from the system"},
	{"go_memstats_mspan_inuse_bytes", "gauge", "used bytes of mspan structures"},
	{"go_memstats_mspan_sys_bytes", "gauge", "bytes of mspan structures that the runtime has from the system"},
	{"go_memstats_next_gc_bytes", "gauge", "size of the heap at which the garbage collector runs next"},
	{"go_memstats_other_sys_bytes", "gauge", "bytes that the runtime has from the system for other purposes"},
	{"go_memstats_stack_inuse_bytes", "gauge", "used bytes of stacks"},
	{"go_memstats_stack_sys_bytes", "gauge", "bytes of stacks that the runtime has from the system"},
	{"go_memstats_sys_bytes", "gauge", "bytes that the runtime has from the system"},
	{"go_mutex_wait_seconds_total", "counter", "time that goroutines waited for mutexes"},
	{"go_scavenge_cpu_seconds_total", "counter", "CPU time of returning memory to the system"},
	{"go_sched_latencies_seconds", "histogram", "time that goroutines were ready and did not run yet"},
	{"go_threads", "gauge", "threads of the runtime"},
	{"process_cpu_seconds_system_total", "counter", "CPU time of the process in the kernel"},
	{"process_cpu_seconds_total", "counter", "CPU time of the process"},
	{"process_cpu_seconds_user_total", "counter", "CPU time of the process outside the kernel"},
	{"process_io_read_bytes_total", "counter", "bytes that the process read"},
	{"process_io_read_syscalls_total", "counter", "system calls of the process that read"},
	{"process_io_storage_read_bytes_total", "counter", "bytes that the process read from disks"},
	{"process_io_storage_written_bytes_total", "counter", "bytes that the process wrote to disks"},
	{"process_io_write_syscalls_total", "counter", "system calls of the process that wrote"},
	{"process_io_written_bytes_total", "counter", "bytes that the process wrote"},
	{"process_major_pagefaults_total", "counter", "page faults of the process that read a disk"},
	{"process_minor_pagefaults_total", "counter", "page faults of the process that read no disk"},
	{"process_num_threads", "gauge", "threads of the process"},
	{"process_resident_memory_anon_bytes", "gauge", "resident memory of the process that belongs to no file"},
	{"process_resident_memory_bytes", "gauge", "resident memory of the process"},
	{"process_resident_memory_file_bytes", "gauge", "resident memory of the process that belongs to files"},
	{"process_resident_memory_peak_bytes", "gauge", "the highest resident memory of the process so far"},
	{"process_resident_memory_shared_bytes", "gauge", "resident memory that the process shares with others"},
	{"process_start_time_seconds", "gauge", "Unix time at which the process started"},
	{"process_virtual_memory_bytes", "gauge", "virtual memory of the process"},
	{"process_virtual_memory_peak_bytes", "gauge", "the highest virtual memory of the process so far"},
}

// writeProcess writes the library's metrics, with HELP and TYPE before the first line of each.
func writeProcess(text *bytes.Buffer) {
	known := make(map[string]family, len(libraryFamilies))
	for _, f := range libraryFamilies {
		known[f.name] = f
	}
	var bare bytes.Buffer
	metrics.WriteProcessMetrics(&bare)
	last := ""
	for line := range strings.Lines(bare.String()) {
		series := line[:max(0, strings.IndexAny(line, "{ "))]
		f := known[series]
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			f = cmp.Or(f, known[strings.TrimSuffix(series, part)])
		}
		if f.name != last && f.name != "" {
			writeHeader(text, f)
		}
		last = f.name
		text.WriteString(line)
	}
}
