package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/bounded"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/identity"
)

// jobFlags are the flags of every command that reads a job file.
type jobFlags struct {
	group    string
	vars     []string
	varFiles []string
	noFiles  bool
}

func (f *jobFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.group, "group", "", "task group to run, needed when the job has several")
	f.addVars(cmd)
}

// addVars adds the flags of a job file's variables alone.
func (f *jobFlags) addVars(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.vars, "var", nil, "value of a variable of the job file, `NAME=VALUE`; may be repeated")
	cmd.Flags().StringArrayVar(&f.varFiles, "var-file", nil, "`FILE` of variables' values; may be repeated")
}

// loadedJob is the job of a job file, its group that is to run, and its text; nil for one that is too long to be kept.
type loadedJob struct {
	job        *api.Job
	group      *api.TaskGroup
	submission *api.JobSubmission
	fromFiles  *jobspec.FromFiles // what messages about the job don't quote
}

// hide returns the error without what the job has from files.
func (l *loadedJob) hide(err error) error {
	if err == nil {
		return nil
	}
	return maskedError{err, l.fromFiles}
}

// maskedError is an error about a job.
type maskedError struct {
	error
	fromFiles *jobspec.FromFiles
}

func (e maskedError) Error() string { return e.fromFiles.Mask(e.error.Error()) }
func (e maskedError) Unwrap() error { return e.error }

// read reads a job file; the group is still to be chosen. Every error about the file is a usage error.
func (f *jobFlags) read(path string, w Environment) (*loadedJob, error) {
	l := &loadedJob{fromFiles: &jobspec.FromFiles{}}
	cfg, err := jobspec.ReadFile(path, w.Stdin, jobspec.Config{
		Vars: f.vars, VarFiles: f.varFiles, Environ: w.Env, Audience: identity.DefaultAudience,
		NoFiles: f.noFiles, FromFiles: l.fromFiles,
	})
	if err != nil {
		return nil, usage(err)
	}
	l.submission = jobspec.Submission(cfg)
	if l.job, err = bounded.Here(cfg); errors.Is(err, jobspec.ErrInvalid) {
		err = usage(err)
	}
	return l, err
}

// load reads a job that is to run, and reviews it for an agent with the settings. What is refused is an error; warnings go to standard error.
func (f *jobFlags) load(path string, settings agent.Settings, w Environment) (*loadedJob, error) {
	loaded, err := f.read(path, w)
	if err != nil {
		return nil, err
	}
	group, findings, err := settings.Review(loaded.job, f.group)
	if errors.Is(err, review.ErrGroupNotNamed) {
		err = fmt.Errorf("%w; choose it with --group", err)
	}
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %w", path, loaded.hide(err)))
	}
	if refused := printFindings(w.Stderr, findings, loaded.fromFiles); refused > 0 {
		return nil, usage(fmt.Errorf("%s needs %d %s that this machine does not have (see above); nothing was started or changed",
			path, refused, plural(refused, "thing", "things")))
	}
	loaded.group = group
	return loaded, nil
}

func validateCommand(w Environment) *cobra.Command {
	var flags jobFlags
	var out outputFlags
	var dataDir string
	settings := agent.DefaultSettings()
	cmd := &cobra.Command{
		Use:   "validate [flags] JOBFILE",
		Short: "Check which parts of a job file would run on this machine",
		Long: `Reads the job file as run does and says which parts would run on this machine, which are ignored or done differently, and which
are refused. Without --group it checks every group of the job. Check a job file from somebody you don't trust with
--no-files: its functions then can't read files of this machine.
--json prints the job, canonicalized, as Nomad's API has it; findings go to standard error.
Exit code: 0 when the job would run, 2 when it would not.`,
		Example: `  taskapi validate examples/hello.nomad.hcl
  taskapi validate -t '{{range .TaskGroups}}{{.Name}}{{end}}' examples/hello.nomad.hcl`,
		Args: oneArg("JOBFILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, err := settings.WithConsulEnv(w.getenv)
			if err != nil {
				return err
			}
			return validate(flags, settings, dataDir, args[0], out, w)
		},
	}
	cmd.Flags().StringVar(&flags.group, "group", "", "task group (default all of them)")
	flags.addVars(cmd)
	cmd.Flags().BoolVar(&flags.noFiles, "no-files", false,
		"refuse functions that read files, such as file(): for a job file that you don't trust")
	bindConsul(&settings, cmd.Flags())
	addDataDir(cmd, &dataDir)
	addOutput(cmd, &out)
	return cmd
}

func validate(flags jobFlags, settings agent.Settings, dataDir, path string, out outputFlags, w Environment) error {
	l, err := newLayout(dataDir, w)
	if err == nil {
		err = settings.Check()
	}
	if err != nil {
		return err
	}
	loaded, err := flags.read(path, w)
	if err != nil {
		return err
	}
	job := loaded.job
	groups, findings, err := reviewed(job, flags.group, settings)
	if err != nil {
		return usage(fmt.Errorf("%s: %w", path, loaded.hide(err)))
	}
	if review.AnyRefused(findings) {
		groups = nil // the machine does not matter
	}
	for _, g := range groups {
		findings = append(findings, settings.CheckTasks(agent.NewAllocation("", job, g), l.Allocs())...)
		findings = append(findings, allocrunner.CheckPorts(g, settings.HostIP)...)
		findings = append(findings, agent.CheckOwnUser(g, false)...)
	}
	say := w.Stdout
	if out.forPrograms() {
		say = w.Stderr
		if err := out.print(w, job, nil, nil); err != nil {
			return err
		}
	}
	refused := printFindings(say, findings, loaded.fromFiles)
	if refused > 0 {
		return usage(fmt.Errorf("%s would not run: this machine does not have %d %s", path, refused, plural(refused, "thing", "things")))
	}
	if out.forPrograms() {
		return nil
	}
	choice := ""
	if len(groups) > 1 {
		choice = ", chosen by --group"
	}
	for _, g := range groups {
		if _, err := fmt.Fprintf(say, "%s would run: job %q, group %q%s, tasks %s\n", path, *job.ID, *g.Name, choice, quotedTasks(g)); err != nil {
			return err
		}
	}
	return nil
}

// reviewed returns the review of one group, or of each for the empty name.
func reviewed(job *api.Job, group string, settings agent.Settings) ([]*api.TaskGroup, []review.Finding, error) {
	if group == "" {
		return settings.ReviewAll(job)
	}
	chosen, findings, err := settings.Review(job, group)
	return []*api.TaskGroup{chosen}, findings, err
}

// printFindings prints the findings of a review, worst first as Review orders them. It masks what the job has from
// files, and returns how many parts are refused.
func printFindings(out io.Writer, findings []review.Finding, fromFiles *jobspec.FromFiles) int {
	refused := 0
	for _, f := range findings {
		if f.Severity == review.Refused {
			refused++
		}
		fmt.Fprintln(out, linewriter.OneLine(fromFiles.Mask(f.String())))
	}
	return refused
}

func quotedTasks(g *api.TaskGroup) string {
	names := make([]string, len(g.Tasks))
	for i, t := range g.Tasks {
		names[i] = fmt.Sprintf("%q", t.Name)
	}
	return strings.Join(names, ", ")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
