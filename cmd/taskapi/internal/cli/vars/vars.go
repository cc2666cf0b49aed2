// Package vars opens the variables of a data directory, and reads variables from JSON, for 'taskapi var' and 'taskapi
// run --put-var'.
package vars

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
)

// Use opens the variables of the data directory for as long as do takes.
func Use(l base.Layout, sealKey string, do func(kept *variables.Service) error) error {
	if err := l.MakeDir(); err != nil {
		return err
	}
	ring, err := l.OpenKeyring(sealKey)
	if err != nil {
		return err
	}
	store := l.OpenCluster()
	kept, err := agent.OpenVariables(store, ring)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	return errors.Join(variableError(do(kept)), store.Close())
}

// variableError marks what the caller can do something about.
func variableError(err error) error {
	if _, ok := errors.AsType[*variables.InvalidError](err); ok {
		return base.Usage(err)
	}
	conflict, ok := errors.AsType[*variables.ConflictError](err)
	if !ok {
		return err
	}
	v := conflict.Variable
	switch {
	case conflict.Locked:
		return fmt.Errorf("variable %q is locked: only the holder of its lock can change it", v.Path)
	case v.ModifyIndex == 0:
		return fmt.Errorf("Check-and-Set conflict: there is no variable %q; give --check-index 0 to make it, or --force "+
			"to write it whatever there is", v.Path)
	case v.Lock != nil && v.Lock.ID != "":
		return fmt.Errorf("Check-and-Set conflict: variable %q has the index %d, and is locked: only the holder of its "+
			"lock can change it", v.Path, v.ModifyIndex)
	}
	return fmt.Errorf("Check-and-Set conflict: variable %q has the index %d, of %s; give --check-index %[2]d to replace "+
		"that, or --force to write it whatever there is", v.Path, v.ModifyIndex, output.Date(time.Unix(0, v.ModifyTime)))
}

// CheckedPath returns a path as an argument has it.
func CheckedPath(arg string) (string, error) {
	path := strings.Trim(strings.TrimSpace(arg), "/")
	return path, base.Usage(variables.CheckPath(path))
}
