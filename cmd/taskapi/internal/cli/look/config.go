package look

import (
	"cmp"
	"errors"
	"io/fs"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/settings"
)

func Config(w base.Environment) *cobra.Command {
	var dataDir, file string
	var out base.OutputFlags
	cmd := &cobra.Command{
		Use:   "config [flags] [FILE]",
		Short: "Check the settings files, and print every setting",
		Long: `Prints every setting that 'taskapi run' would have without flags, and where each comes from.

It reads this machine's settings file, or FILE, and the data directory's own. 'taskapi status -v ALLOC' prints the
settings of an allocation.

Exit code: 0 when the files can be used, 2 when one has a mistake or names a file that can't be used.`,
		Example: `  taskapi config
  taskapi config -t '{{range .}}{{if eq .Key "host_ip"}}{{.Value}}{{end}}{{end}}'`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				file = args[0]
			}
			machine, err := settings.Machine(file, w.Getenv)
			if err != nil {
				return base.Usage(err)
			}
			next, err := settings.Record{}.Next(nil, machine, w.Getenv)
			if err != nil {
				return base.Usage(err)
			}
			all, err := next.Settings()
			if err == nil {
				err = all.TryReading()
			}
			if err != nil {
				return base.Usage(err)
			}
			l, err := base.NewLayout(dataDir, w)
			if err != nil {
				return err
			}
			data, err := settings.ReadData(string(l.Dir))
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return base.Usage(err)
			}
			rows := next.Rows(data)
			return out.Table(w, rows, settingsTable(rows, w))
		},
	}
	base.AddConfig(cmd, &file)
	base.AddDataDir(cmd, &dataDir)
	base.AddOutput(cmd, &out)
	return cmd
}

func settingsTable(rows []settings.Row, w base.Environment) *output.Table {
	table := output.Table{Colors: w.Colors()}
	table.Header("Setting", "Value", "From")
	for _, r := range rows {
		table.Row(r.Key, cmp.Or(r.Value, "-"), cmp.Or(r.From, "-"))
	}
	return &table
}
