package driver

const MaxExecs = maxExecs

// OOMKilled reads a cgroup's directory.
func OOMKilled(dir string) bool { return (&cgroup{dir: dir}).oomKilled() }
