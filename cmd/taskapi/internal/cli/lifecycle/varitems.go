package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/vars"
)

// credentialPrefix begins the name of one of the credentials that systemd gives a service, systemd.exec(5).
const credentialPrefix = "credential:"

// readVarItems returns the variables of --put-var, in the order of their first flags. Errors name places, and no
// values.
func readVarItems(given []string, namespace string, w base.Environment) ([]*api.Variable, error) {
	var all []*api.Variable
	byPath := map[string]*api.Variable{}
	for _, text := range given {
		target, source, found := strings.Cut(text, "=")
		target, key, one := strings.Cut(target, "#")
		if !found || source == "" || one && key == "" {
			return nil, base.Usagef("--put-var %q must be PATH=FILE, PATH#KEY=FILE or PATH=credential:NAME", text)
		}
		path, err := vars.CheckedPath(target)
		if err != nil {
			return nil, base.Usagef("--put-var %q: %w", text, err)
		}
		items, err := readItems(source, key, w)
		if err != nil {
			return nil, base.Usagef("--put-var %q: %w", text, err)
		}
		if byPath[path] == nil {
			byPath[path] = &api.Variable{Namespace: namespace, Path: path, Items: api.VariableItems{}}
			all = append(all, byPath[path])
		}
		maps.Copy(byPath[path].Items, items)
	}
	return all, nil
}

// readItems reads the items of one flag: all of a specification, or the source as the one item of the key.
func readItems(source, key string, w base.Environment) (map[string]string, error) {
	file, err := itemsFile(source, w)
	if err != nil {
		return nil, err
	}
	text, err := base.ReadInput(file, w.Stdin, vars.MaxSpec)
	if err != nil {
		return nil, err
	}
	if key != "" {
		return map[string]string{key: string(text)}, nil
	}
	spec, err := vars.ParseSpec(filepath.Base(file), text)
	if err == nil && len(spec.Items) == 0 {
		err = fmt.Errorf("%s has no items", filepath.Base(file))
	}
	return spec.Items, err
}

// itemsFile returns the file of a source.
func itemsFile(source string, w base.Environment) (string, error) {
	name, isCredential := strings.CutPrefix(source, credentialPrefix)
	switch dir := w.Getenv("CREDENTIALS_DIRECTORY"); {
	case !isCredential && source == "-":
		return "", errors.New("standard input is for the job file: give a file")
	case !isCredential:
		return source, nil
	case dir == "":
		return "", errors.New("CREDENTIALS_DIRECTORY is not set: systemd sets it for a service with LoadCredential= or " +
			"SetCredentialEncrypted=")
	case name == "" || name == "." || name == ".." || strings.Contains(name, "/"):
		return "", fmt.Errorf("%q is no name of a credential", name)
	default:
		return filepath.Join(dir, name), nil
	}
}

// putVarItems writes the variables of --put-var that differ from the stored ones. The audit logs have each.
func (r *request) putVarItems(ctx context.Context) error {
	if len(r.variables) == 0 {
		return nil
	}
	return vars.Use(r.layout, r.options.SealKey, func(kept *variables.Service) error {
		for _, v := range r.variables {
			now, _, err := kept.Read(ctx, v.Namespace, v.Path)
			if _, damaged := errors.AsType[*variables.DamagedError](err); err != nil && !damaged {
				return err
			}
			if now != nil && maps.Equal(now.Items, v.Items) {
				continue
			}
			err = r.layout.Audited(r.environment, fmt.Sprintf("run --put-var: %s in namespace %s", v.Path, v.Namespace),
				func() (string, error) {
					_, _, err := kept.Put(ctx, v, nil)
					return "", err
				})
			if err != nil {
				return fmt.Errorf("--put-var: %w", err)
			}
		}
		return nil
	})
}
