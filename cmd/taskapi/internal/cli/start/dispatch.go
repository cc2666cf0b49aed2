package start

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/pflag"

	"taskapi/allocrunner/dispatch"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/slice"
)

// WithoutDispatch returns the flags without those that a child's job has replaced.
func WithoutDispatch(flags []string) []string {
	return slices.DeleteFunc(slices.Clone(flags), func(flag string) bool {
		name, _, _ := strings.Cut(flag, "=")
		return slices.Contains([]string{"--payload", "--meta", "--var", "--var-file"}, name)
	})
}

// Dispatched returns a child of the job for --payload and --meta. given is what they dispatch; nil, for the first call,
// to read it. Without these flags, it returns the job, and nil.
func (o *Options) Dispatched(
	job *api.Job, given *interfaces.Dispatch, flags *pflag.FlagSet, w base.Environment,
) (_ *api.Job, d *interfaces.Dispatch, err error) {
	if !flags.Changed("payload") && !flags.Changed("meta") {
		return job, nil, nil
	}
	if !job.IsParameterized() {
		return nil, nil, base.Usagef("--payload and --meta dispatch a parameterized job, and job %q has no parameterized "+
			"block", *job.ID)
	}
	if d = given; d == nil {
		if d, err = o.readDispatch(w); err != nil {
			return nil, nil, err
		}
	}
	if err := dispatch.Check(job, *d); err != nil {
		return nil, nil, base.Usage(withFlags(err))
	}
	return dispatch.Dispatched(job, *d, time.Now()), d, nil
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
	give = append(give, slice.Map(lacks.NeedsMeta, func(key string) string { return "--meta " + key + "=VALUE" })...)
	if len(give) == 0 {
		return err
	}
	return fmt.Errorf("%w: give %s", err, strings.Join(give, " "))
}

func (o *Options) readDispatch(w base.Environment) (*interfaces.Dispatch, error) {
	d := &interfaces.Dispatch{Meta: map[string]string{}}
	for _, given := range o.Meta {
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
	if o.Payload != "" {
		var err error
		if d.Payload, err = base.ReadInput(o.Payload, w.Stdin, dispatch.MaxPayload); err != nil {
			return nil, base.Usagef("--payload %w", err)
		}
	}
	return d, nil
}
