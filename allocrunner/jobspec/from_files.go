package jobspec

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// FromFiles holds the texts of a job that come from files: functions such as file() read them, or made them from what
// they read. Messages about the job don't quote them.
type FromFiles struct{ Texts []string }

// shortText is the length below which a text is masked only in quotes: many words contain it by chance.
const shortText = 4

// Mask returns a message in which texts from files are replaced.
func (f *FromFiles) Mask(message string) string {
	if f == nil {
		return message
	}
	longestFirst := slices.SortedFunc(slices.Values(f.Texts),
		func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, text := range longestFirst {
		if text == "" {
			continue
		}
		quoted := strconv.Quote(text)
		message = strings.ReplaceAll(message, quoted, `"(from a file)"`)
		if len(text) >= shortText {
			message = strings.ReplaceAll(message, text, "(from a file)")
			message = strings.ReplaceAll(message, quoted[1:len(quoted)-1], "(from a file)")
		}
	}
	return message
}
