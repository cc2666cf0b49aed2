package start

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/allocrunner"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/settings"
)

// SettingFlags are the flags of every command that needs settings.
type SettingFlags struct {
	Config  string // a file
	Agent   bool   // it is taskapi agent, which takes the settings of its own work, too
	options []string
}

// Add adds the flags.
func (f *SettingFlags) Add(cmd *cobra.Command) {
	base.AddConfig(cmd, &f.Config)
	cmd.Flags().StringArrayVarP(&f.options, "option", "o", nil,
		"set `KEY=VALUE` in place of the settings file; may be repeated; 'taskapi config' lists the keys")
	// the flag has just been added
	_ = cmd.RegisterFlagCompletionFunc("option", func(_ *cobra.Command, _ []string, begun string) (
		keys []string, _ cobra.ShellCompDirective,
	) {
		for _, k := range settings.Keys() {
			if strings.HasPrefix(k.Name, begun) {
				keys = append(keys, cobra.CompletionWithDesc(k.Name+"=", k.Doc))
			}
		}
		return keys, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
}

// IsolateFlag names the flag of the setting isolate_users.
const IsolateFlag = "isolate-users"

// AddAll adds the flags of every setting that has one.
func (f *SettingFlags) AddAll(cmd *cobra.Command) {
	f.addRights(cmd.Flags())
	f.Add(cmd)
}

// Given returns the flags as they were given, for a run that has them. It leaves out the agent's own settings.
func (f *SettingFlags) Given(flags *pflag.FlagSet) (args []string) {
	for _, name := range []string{"config", "policy", IsolateFlag} {
		if given := flags.Lookup(name); given.Changed {
			args = append(args, "--"+name+"="+given.Value.String())
		}
	}
	for _, option := range f.options {
		if key, _, _ := strings.Cut(option, "="); !settings.OfAgent(key) {
			args = append(args, "--option="+option)
		}
	}
	return args
}

// addRights adds the flags of the settings that say what tasks may do.
func (f *SettingFlags) addRights(flags *pflag.FlagSet) {
	flags.String("policy", "", "rights of the tasks, a `PRESET|FILE`: local (they also control their own allocation), "+
		"nomad (only what Nomad gives a workload without a policy), or a policy file, such as ./policy.hcl")
	flags.String(IsolateFlag, "", "as root, give each task without a user one of its own, numbered `FROM-TO` ("+
		agent.FormatIDRange(allocrunner.DefaultIDRange)+" when none are given)")
	flags.Lookup(IsolateFlag).NoOptDefVal = "true"
}

// settingOf is the setting of a flag.
var settingOf = map[string]string{"policy": "policy", IsolateFlag: "isolate_users"}

// given returns the values of the flags and of -o.
func (f *SettingFlags) given(flags *pflag.FlagSet) (settings.Values, error) {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/" // it was removed; whole paths still work
	}
	all, err := settings.ParseOptions(f.options, dir)
	for _, v := range all {
		if settings.OfAgent(v.Key) && !f.Agent && err == nil {
			err = fmt.Errorf("-o %s: it is for taskapi agent: give it there, or put it into the settings file", v.Key)
		}
	}
	flags.Visit(func(given *pflag.Flag) {
		if key := settingOf[given.Name]; key != "" && err == nil {
			err = all.Give(key, given.Value.String(), dir, "--"+given.Name)
		}
	})
	return all, base.Usage(err)
}

// Next returns the record of the next run of an allocation, and its settings. machine says whether the machine's own
// file counts; the file that a flag or the environment names always does.
func (f *SettingFlags) Next(before settings.Record, flags *pflag.FlagSet, machine bool, w base.Environment) (
	next settings.Record, s agent.Settings, err error,
) {
	given, err := f.given(flags)
	if err != nil {
		return next, s, err
	}
	var file settings.Values
	if machine || f.Config != "" || w.Getenv(settings.FileEnv) != "" {
		if file, err = settings.Machine(f.Config, w.Getenv); err != nil {
			return next, s, base.Usage(err)
		}
	}
	if next, err = before.Next(given, file, w.Getenv); err == nil {
		s, err = next.Settings()
	}
	return next, s, base.Usage(err)
}
