package jobspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"

	"taskapi/allocrunner/jobspec/internal/hcleval"
)

// envPrefix precedes a variable's name in the environment.
const envPrefix = "NOMAD_VAR_"

// assign sets variables from the environment, then from variable files, then from the text of a variable file, then
// from -var. Later values win.
func (f *hclFile) assign(declared map[string]*variable) hcl.Diagnostics {
	var diags hcl.Diagnostics
	for _, entry := range f.cfg.Environ {
		key, text, _ := strings.Cut(entry, "=")
		name, ok := strings.CutPrefix(key, envPrefix)
		if v := declared[name]; ok && v != nil { // others may be meant for other job files
			diags = append(diags, f.setText(v, key+" in the environment", text)...)
		}
	}
	for _, path := range f.cfg.VarFiles {
		diags = append(diags, f.setFile(declared, path)...)
	}
	if text := []byte(f.cfg.VarText); len(text) > 0 {
		if err := checkVarText(varTextName, text); err != nil {
			diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "Variables", Detail: err.Error() +
				"."})
		} else {
			diags = append(diags, f.setFrom(declared, varTextName, text)...)
		}
	}
	for _, flag := range f.cfg.Vars {
		diags = append(diags, f.setFlag(declared, flag)...)
	}
	return diags
}

func (f *hclFile) setFlag(declared map[string]*variable, flag string) hcl.Diagnostics {
	name, text, ok := strings.Cut(flag, "=")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "Invalid -var",
			Detail: fmt.Sprintf("-var %q must be name=value.", flag)}}
	}
	v := declared[name]
	if v == nil {
		return hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "Undeclared variable", Detail: "-var " + name + ": " +
			undeclared(declared, name)}}
	}
	return f.setText(v, "-var "+name, text)
}

func undeclared(declared map[string]*variable, name string) string {
	if len(declared) == 0 {
		return fmt.Sprintf("the job file declares no variables, so %q can't be set.", name)
	}
	return fmt.Sprintf("the job file declares no variable %q.%s", name,
		didYouMean(name, slices.Sorted(maps.Keys(declared))))
}

// didYouMean suggests the first candidate that is at most two letters off; it is empty without one.
func didYouMean(name string, candidates []string) string {
	for _, candidate := range candidates {
		if levenshtein.Distance(name, candidate, nil) <= 2 {
			return fmt.Sprintf(" Did you mean %q?", candidate)
		}
	}
	return ""
}

// setText sets a variable from text. For a string, number or bool the text is the value; for other types it is an HCL
// expression. Errors never quote the text: it may be a secret.
func (f *hclFile) setText(v *variable, source, text string) hcl.Diagnostics {
	plainDefault := v.value == cty.NilVal || v.value.Type().IsPrimitiveType()
	if v.typ.IsPrimitiveType() || v.typ == cty.DynamicPseudoType && plainDefault {
		end := hcl.Pos{Line: 1, Column: 1 + len(text), Byte: len(text)}
		return f.set(v, hcl.StaticExpr(cty.StringVal(text),
			hcl.Range{Filename: source, Start: hcl.InitialPos, End: end}))
	}
	expr, diags := f.eval.ParseExpression([]byte(text), source)
	if diags.HasErrors() {
		return diags
	}
	return f.set(v, expr)
}

func (f *hclFile) setFile(declared map[string]*variable, path string) hcl.Diagnostics {
	src, err := hcleval.ReadRegular(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%s does not exist", path)
	case err == nil:
		err = checkVarText(path, src)
	}
	if err != nil {
		return hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "Variable file", Detail: err.Error() + "."}}
	}
	return f.setFrom(declared, path, src)
}

// varTextName names the text of variables in errors.
const varTextName = "variables"

func (f *hclFile) setFrom(declared map[string]*variable, path string, src []byte) hcl.Diagnostics {
	f.sources[path] = src
	attrs, diags := f.fileAttributes(path, src)
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		v := declared[name]
		if v == nil {
			diags = append(diags, hcleval.ErrorAt(attrs[name].NameRange, "Undeclared variable", "%s",
				undeclared(declared, name)))
			continue
		}
		diags = append(diags, f.set(v, attrs[name].Expr)...)
	}
	return diags
}

func checkVarText(path string, src []byte) error {
	if len(bytes.TrimSpace(src)) == 0 {
		return nil // a file without variables is no mistake
	}
	return checkText(path, src)
}

func (f *hclFile) fileAttributes(path string, src []byte) (hcl.Attributes, hcl.Diagnostics) {
	if strings.EqualFold(filepath.Ext(path), ".json") {
		if err := shallowJSON(src); err != nil {
			return nil, hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "Variable file",
				Detail: fmt.Sprintf("%s: %s.", path, err)}}
		}
		file, diags := hcljson.Parse(src, path)
		if diags.HasErrors() {
			return nil, diags
		}
		return file.Body.JustAttributes()
	}
	body, diags := hcleval.ParseBody(src, path)
	if diags.HasErrors() {
		return nil, diags
	}
	f.eval.PrepareBody(body, src)
	return body.JustAttributes()
}

// shallowJSON refuses broken JSON, and JSON that is nested so deep that a recursive parser would need much stack:
// encoding/json stops with an error at a depth of 10,000.
func shallowJSON(src []byte) error {
	var raw json.RawMessage
	return json.Unmarshal(src, &raw)
}
