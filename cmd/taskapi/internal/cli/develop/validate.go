package develop

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/internal/slice"
)

func Validate(w base.Environment) *cobra.Command {
	var flags start.JobFlags
	var out base.OutputFlags
	var dataDir string
	var given start.SettingFlags
	cmd := &cobra.Command{
		Use:        "validate [flags] JOBFILE",
		SuggestFor: []string{"lint", "fmt", "vet"},
		Short:      "Check which parts of a job file would run on this machine",
		Long: `Says which parts of a job file would run on this machine, and which are ignored or refused.

It reads the file as 'taskapi run' does, and checks every group without --group. Use --no-files for a job file from
somebody you don't trust: its functions then can't read files of this machine.

--json prints the canonical job, as Nomad's API has it. Findings go to standard error.

Exit code: 0 when the job would run, 1 when it would start and a task of it fail, 2 when it would not start.`,
		Example: `  taskapi validate examples/hello.nomad.hcl
  taskapi validate -t '{{range .TaskGroups}}{{.Name}}{{end}}' examples/hello.nomad.hcl`,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, s, err := given.Next(settings.Record{}, cmd.Flags(), true, w)
			if err != nil {
				return err
			}
			return validate(flags, s, dataDir, args[0], out, w)
		},
	}
	cmd.Flags().StringVar(&flags.Group, "group", "", "task `GROUP` (default all of them)")
	flags.AddVars(cmd)
	cmd.Flags().BoolVar(&flags.NoFiles, "no-files", false,
		"refuse functions that read files, such as file(): for a job file that you don't trust")
	given.AddAll(cmd)
	base.AddDataDir(cmd, &dataDir)
	base.AddOutput(cmd, &out)
	return cmd
}

func validate(flags start.JobFlags, s agent.Settings, dataDir, path string, out base.OutputFlags,
	w base.Environment) error {
	l, err := base.NewLayout(dataDir, w)
	if err != nil {
		return err
	}
	loaded, err := flags.Read(path, w)
	if err != nil {
		return err
	}
	job := loaded.Job
	groups, findings, err := s.ReviewAll(job)
	if flags.Group != "" {
		var chosen *api.TaskGroup
		chosen, findings, err = s.Review(job, flags.Group)
		groups = []*api.TaskGroup{chosen}
	}
	if err != nil {
		return base.Usagef("%s: %w", path, loaded.Hide(err))
	}
	if _, err := s.OpenPolicy(); err != nil {
		return base.Usage(err)
	}
	if review.AnyRefused(findings) {
		groups = nil // the machine does not matter
	}
	for _, g := range groups {
		if err := s.CheckUsers(g); err != nil {
			return base.Usagef("%s would not run: %w", path, loaded.Hide(err))
		}
		findings = append(findings, s.CheckTasks(agent.NewAllocation("", job, g), l.Allocs())...)
		findings = append(findings, allocrunner.CheckPorts(g, s.HostIP, l.Describe)...)
		findings = append(findings, agent.CheckOwnUser(g, s.IsolateUsers != "")...)
	}
	say := w.Stdout
	if out.ForPrograms() {
		say = w.Stderr
		if err := out.Print(w, job, nil, nil); err != nil {
			return err
		}
	}
	refused := loaded.PrintFindings(say, findings)
	if refused > 0 {
		return base.Usagef("%s would not run: %d %s refused", path, refused, base.Plural(refused, "part is", "parts are"))
	}
	if slices.ContainsFunc(findings, func(f review.Finding) bool { return f.Fails }) {
		return fmt.Errorf("%s would start, and a task would fail (see above)", path)
	}
	if out.ForPrograms() {
		return nil
	}
	for _, g := range groups {
		choice := ""
		if len(groups) > 1 {
			choice = fmt.Sprintf(" (with --group %s, or --all)", *g.Name)
		}
		tasks := slice.Map(g.Tasks, func(t *api.Task) string { return strconv.Quote(t.Name) })
		if _, err := fmt.Fprintf(say, "%s would run: job %q, group %q%s, tasks %s\n", path, *job.ID, *g.Name, choice,
			strings.Join(tasks, ", ")); err != nil {
			return err
		}
	}
	return nil
}
