package variables

// Now is this machine's clock of leases.
var Now = now

// UsageKey is the key of what the tasks of a job have written.
func UsageKey(namespace, job string) string { return usageKey + "/" + writerOf(namespace, job) }
