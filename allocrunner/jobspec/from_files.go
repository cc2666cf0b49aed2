package jobspec

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// FromFiles are the texts of a job that functions such as file() read, or that were made of what they read. Messages about the job don't quote them.
type FromFiles struct{ Texts []string }

// shortText is a length below which only a text in quotes is masked: as part of a word it says nothing, and it is part of many.
const shortText = 4

// Mask returns a message with what was read from files replaced.
func (f *FromFiles) Mask(message string) string {
	if f == nil {
		return message
	}
	longestFirst := slices.SortedFunc(slices.Values(f.Texts), func(a, b string) int { return cmp.Compare(len(b), len(a)) })
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
