package hcleval

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// MaxFileBytes bounds each file that is read: job file, variable file, and those that functions name. Nomad keeps
// sources of up to 1 MB; JSON jobs with templates inside are larger.
const MaxFileBytes = 4 << 20

// ReadRegular reads a whole regular file of at most MaxFileBytes. Any other file is an error that says what it is;
// ReadRegular never blocks on a pipe or a device.
func ReadRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return nil, fmt.Errorf("read %s: it is a directory, a file is needed", path)
	case !mode.IsRegular():
		return nil, fmt.Errorf("read %s: it is no regular file but a device, pipe or socket", path)
	}
	return ReadBounded(f, path)
}

// ReadBounded reads r to its end; more than MaxFileBytes are an error.
func ReadBounded(r io.Reader, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("read %s: it is larger than %d MiB", name, MaxFileBytes>>20)
	}
	return data, nil
}

func resolve(dir, path string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "~"); ok {
		home, err := os.UserHomeDir()
		if rest != "" && rest[0] != '/' {
			err = errors.New("no other user's directory can be named")
		}
		if err != nil {
			return "", fmt.Errorf("expand ~ in %q: %w", path, err)
		}
		path = home + rest
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	return filepath.Clean(path), nil
}

func readFrom(dir, path string) ([]byte, error) {
	full, err := resolve(dir, path)
	if err != nil {
		return nil, err
	}
	return ReadRegular(full)
}

func readText(dir, path string) (string, error) {
	data, err := readFrom(dir, path)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(data) {
		return "", fmt.Errorf("%s is not UTF-8 text; filebase64 reads other files", path)
	}
	return string(data), nil
}

// mark is the type of fromFile, which marks values that functions read from files, and values made from those.
type mark struct{}

var fromFile mark

func pathFunc(result cty.Type, impl func(path string) (cty.Value, error)) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "path", Type: cty.String}},
		Type:   function.StaticReturnType(result),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			v, err := impl(args[0].AsString())
			if err != nil {
				return cty.UnknownVal(result), function.NewArgError(0, err)
			}
			return v.Mark(fromFile), nil
		},
	})
}

func fileExistsFunc(dir string) function.Function {
	return pathFunc(cty.Bool, func(path string) (cty.Value, error) {
		full, err := resolve(dir, path)
		if err != nil {
			return cty.False, err
		}
		info, err := os.Stat(full)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return cty.False, nil
		case err != nil:
			return cty.False, err
		case !info.Mode().IsRegular():
			return cty.False, fmt.Errorf("%s is no regular file", path)
		}
		return cty.True, nil
	})
}

// fileSetFunc lists the regular files below a folder whose path in it matches a pattern, "**" included.
func fileSetFunc(dir string) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "path", Type: cty.String}, {Name: "pattern", Type: cty.String}},
		Type:   function.StaticReturnType(cty.Set(cty.String)),
		Impl: func(args []cty.Value, ty cty.Type) (cty.Value, error) {
			root, err := resolve(dir, args[0].AsString())
			if err != nil {
				return cty.UnknownVal(ty), function.NewArgError(0, err)
			}
			found, err := matching(root, args[1].AsString())
			if err != nil {
				return cty.UnknownVal(ty), err
			}
			if len(found) == 0 {
				return cty.SetValEmpty(cty.String), nil
			}
			return cty.SetVal(found).Mark(fromFile), nil
		},
	})
}

func matching(root, pattern string) ([]cty.Value, error) {
	var found []cty.Value
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil || entry.IsDir() {
			return err
		}
		ok, err := doublestar.PathMatch(pattern, rel)
		if err != nil {
			return fmt.Errorf("pattern %q: %w", pattern, err)
		}
		if !ok {
			return nil
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			found = append(found, cty.StringVal(filepath.ToSlash(rel)))
		}
		return nil
	})
	return found, err
}

// templateFileFunc renders a file as an HCL template. The template can use the given values and every function but
// templatefile, so that it can't call itself. Other references stay text, as in the job file.
func (e *Evaluator) templateFileFunc(dir string) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "path", Type: cty.String}, {Name: "vars", Type: cty.DynamicPseudoType}},
		Type:   function.StaticReturnType(cty.DynamicPseudoType),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			v, err := e.renderTemplate(dir, args[0].AsString(), args[1])
			if err != nil {
				return cty.DynamicVal, function.NewArgError(0, err)
			}
			return v.Mark(fromFile), nil
		},
	})
}

func (e *Evaluator) renderTemplate(dir, path string, vars cty.Value) (cty.Value, error) {
	if ty := vars.Type(); vars.IsNull() || !ty.IsObjectType() && !ty.IsMapType() {
		return cty.DynamicVal, fmt.Errorf("the second argument must be a map of the template's values")
	}
	src, err := readText(dir, path)
	if err != nil {
		return cty.DynamicVal, err
	}
	known := vars.AsValueMap()
	expr, diags := e.expression([]byte(src), path, hclsyntax.ParseTemplate,
		newScope(slices.Collect(maps.Keys(known))...))
	if diags.HasErrors() {
		return cty.DynamicVal, withoutDetails(diags)
	}
	ctx := e.Context(known, true)
	// The parent context has every function. Here templatefile is one that refuses.
	ctx.Functions = map[string]function.Function{"templatefile": refusing("a template can't render another template")}
	v, diags := expr.Value(ctx)
	if diags.HasErrors() {
		return cty.DynamicVal, withoutDetails(diags)
	}
	return v, nil
}

// withoutDetails returns the first error and its place, without details, which could quote the file.
func withoutDetails(diags hcl.Diagnostics) error {
	for _, diag := range diags {
		if diag.Severity != hcl.DiagError || diag.Subject == nil {
			continue
		}
		what := diag.Summary
		if call, ok := hcl.DiagnosticExtra[hclsyntax.FunctionCallDiagExtra](diag); ok &&
			call.FunctionCallError() != nil {
			what = fmt.Sprintf("%s can't be called so", call.CalledFunctionName())
		}
		return fmt.Errorf("%s:%d: %s", diag.Subject.Filename, diag.Subject.Start.Line, what)
	}
	return errHidden
}

// refusing returns a function that takes any arguments, and whose every call is the error.
func refusing(why string) function.Function {
	return function.New(&function.Spec{
		VarParam: &function.Parameter{Name: "args", Type: cty.DynamicPseudoType},
		Type:     func([]cty.Value) (cty.Type, error) { return cty.DynamicPseudoType, errors.New(why) },
	})
}
