package base

import (
	"strings"
)

// commands writes the commands that a message tells its reader to run, about the allocations of one data directory.
type commands struct {
	DataDir string // empty for the one where this user's commands look without a flag
}

// Command returns a command line to copy. It names the data directory unless it is the default: without, it would be about another one,
// where a run would start an allocation over.
func (c commands) Command(verb string, args ...string) string {
	words := []string{"taskapi", verb}
	if c.DataDir != "" {
		words = append(words, "--data-dir", ShellWord(c.DataDir))
	}
	return strings.Join(append(words, args...), " ")
}

// ShellWord returns a text as one word of a POSIX shell. In double quotes, since messages have commands in single ones.
func ShellWord(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n\"'\\$`&|;<>()*?[]#~=%!{}") {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(s) + `"`
}
