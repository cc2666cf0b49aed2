package variables

import (
	"fmt"
	"strings"
)

// Nomad's bounds of names.
const (
	maxPath      = 128
	maxNamespace = 128
)

// CheckPath returns an *InvalidError, in Nomad's words, for a path that no variable can have.
func CheckPath(path string) error {
	if path == "" {
		return invalid("variable requires path")
	}
	if len(path) > maxPath {
		return invalid("invalid path %q: it has %d characters, and at most %d are allowed", path[:maxPath]+"...",
			len(path), maxPath)
	}
	if strings.ContainsFunc(path, func(c rune) bool { return !inName(c) && !strings.ContainsRune("_~/", c) }) {
		return invalid("invalid path %q: letters, digits and the characters - _ ~ / are allowed", path)
	}
	return checkReserved(strings.Split(path, "/"))
}

func inName(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
}

// checkReserved refuses the paths that Nomad reserves below nomad/.
func checkReserved(parts []string) error {
	switch {
	case parts[0] != "nomad":
		return nil
	case len(parts) == 1:
		return invalid(`"nomad" is a reserved top-level directory path, but you may write variables to ` +
			`"nomad/jobs", "nomad/job-templates", "nomad/sentinel", or below`)
	case parts[1] == "jobs", parts[1] == "sentinel", parts[1] == "job-templates" && len(parts) == 3:
		return nil
	case parts[1] == "job-templates":
		return invalid(`"nomad/job-templates" is a reserved directory path, but you may write variables ` +
			`at the level below it, for example, "nomad/job-templates/template-name"`)
	}
	return invalid(`only paths at "nomad/jobs" or "nomad/job-templates" and below are valid paths ` +
		`under the top-level "nomad" directory`)
}

// checkNamespace refuses a name that can't be one of a namespace in Nomad.
func checkNamespace(name string) error {
	switch {
	case name == AllNamespaces:
		return invalid(`can not target wildcard ("*")namespace`)
	case name == "", len(name) > maxNamespace, strings.ContainsFunc(name, func(c rune) bool { return !inName(c) }):
		return invalid("invalid namespace %q: 1 to %d letters, digits and hyphens are allowed",
			name[:min(len(name), maxNamespace)], maxNamespace)
	}
	return nil
}

// place is where a variable is.
type place struct{ namespace, path string }

// The keys of the store. The leases of locks have keys of their own, since a renewal does not change the variable.
const (
	variablePrefix = "vars/"
	leasePrefix    = "locks/"
	usageKey       = "usage/vars"
)

func (p place) key() string      { return variablePrefix + p.String() }
func (p place) leaseKey() string { return leasePrefix + p.String() }

// String returns the place as it stands in keys and in the seal of items. No namespace has a slash in its name.
func (p place) String() string { return p.namespace + "/" + p.path }

// prefixOf returns the prefix of the keys of a list. For AllNamespaces the path has no part in it.
func prefixOf(namespace, prefix string) string {
	if namespace == AllNamespaces {
		return variablePrefix
	}
	return place{namespace, prefix}.key()
}

// placeIn returns the place of a key of the store below a root.
func placeIn(root, key string) (place, bool) {
	rest, ok := strings.CutPrefix(key, root)
	namespace, path, found := strings.Cut(rest, "/")
	return place{namespace, path}, ok && found && namespace != "" && path != ""
}

// KeyPrefix returns the prefix of the keys of a namespace's variables, or of those of AllNamespaces.
func KeyPrefix(namespace string) string { return prefixOf(namespace, "") }

// OfKey returns the namespace and the path of the variable whose key in the store has changed; ok is false for other
// keys.
func OfKey(key string) (namespace, path string, ok bool) {
	at, ok := placeIn(variablePrefix, key)
	return at.namespace, at.path, ok
}

// invalid returns an *InvalidError with these words.
func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }
