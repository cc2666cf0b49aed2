package lifecycle

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/pflag"

	"taskapi/allocrunner/dispatch"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
)

// withoutDispatch returns the flags without those that a child's job has replaced.
func withoutDispatch(flags []string) []string {
	return slices.DeleteFunc(slices.Clone(flags), func(flag string) bool {
		name, _, _ := strings.Cut(flag, "=")
		return slices.Contains([]string{"--payload", "--meta", "--var", "--var-file"}, name)
	})
}

// toRun returns the job to run: the one of the job file or, with --payload or --meta, a child of it.
func (r *request) toRun(job *api.Job, flags *pflag.FlagSet) (*api.Job, error) {
	if !flags.Changed("payload") && !flags.Changed("meta") {
		return job, nil
	}
	if !job.IsParameterized() {
		return nil, base.Usagef("--payload and --meta dispatch a parameterized job, and job %q has no parameterized block",
			*job.ID)
	}
	if r.dispatch == nil { // standard input can be read once
		var err error
		if r.dispatch, err = r.readDispatch(); err != nil {
			return nil, err
		}
	}
	if err := dispatch.Check(job, *r.dispatch); err != nil {
		return nil, base.Usage(withFlags(err))
	}
	return dispatch.Dispatched(job, *r.dispatch, time.Now()), nil
}

// withFlags adds to an error the flags that mend it.
func withFlags(err error) error {
	lacks, ok := errors.AsType[*dispatch.Error](err)
	if !ok {
		return err
	}
	var give []string
	if lacks.NeedsPayload {
		give = append(give, "--payload FILE")
	}
	for _, key := range lacks.NeedsMeta {
		give = append(give, "--meta "+key+"=VALUE")
	}
	if len(give) == 0 {
		return err
	}
	return fmt.Errorf("%w: give %s", err, strings.Join(give, " "))
}

func (r *request) readDispatch() (*interfaces.Dispatch, error) {
	d := &interfaces.Dispatch{Meta: map[string]string{}}
	for _, given := range r.options.Meta {
		key, value, ok := strings.Cut(given, "=")
		_, twice := d.Meta[key]
		switch {
		case !ok:
			return nil, base.Usagef("--meta %q has no equals sign: give KEY=VALUE", given)
		case twice:
			return nil, base.Usagef("--meta %s is given twice", key)
		}
		d.Meta[key] = value
	}
	var err error
	switch path := r.options.Payload; path {
	case "":
	case "-":
		d.Payload, err = io.ReadAll(io.LimitReader(r.environment.Stdin, dispatch.MaxPayload+1))
	default:
		var f *os.File
		if f, err = os.Open(path); err == nil {
			d.Payload, err = io.ReadAll(io.LimitReader(f, dispatch.MaxPayload+1))
			f.Close()
		}
	}
	if err != nil {
		return nil, base.Usagef("--payload %s: %w", r.options.Payload, agent.UnwrapPath(err))
	}
	return d, nil
}
