package proctree

// NewIn is New with that directory to make the tasks' cgroups in.
func NewIn(dir string, cfg Config) *Trees {
	s := New(cfg)
	s.cgroups.parent = dir
	return s
}

// OOMKilled reads a cgroup's directory.
func OOMKilled(dir string) bool { return (&cgroup{dir: dir}).oomKilled() }
