package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"taskapi/internal/filehead"
	"taskapi/internal/safedir"
)

// Name is a settings file's.
const Name = "taskapi.hcl"

// FileEnv stands for --config.
const FileEnv = "TASKAPI_CONFIG"

// maxFile is more bytes than a settings file needs.
const maxFile = 1 << 20

// Machine returns the values of the machine's settings file: the given one, or the one of the environment, or root's
// or the user's, which may be missing.
func Machine(given string, getenv func(string) string) (Values, error) {
	if given = cmp.Or(given, getenv(FileEnv)); given != "" {
		return ReadMachine(given)
	}
	all, err := ReadMachine(Path(getenv))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoPath) {
		return nil, nil
	}
	return all, err
}

// errNoPath: this user has no place for a file.
var errNoPath = errors.New("no path")

// Path returns the place of the machine's settings file; empty for none.
func Path(getenv func(string) string) string {
	switch {
	case os.Geteuid() == 0:
		return "/etc/taskapi/" + Name
	case getenv("XDG_CONFIG_HOME") != "":
		return filepath.Join(getenv("XDG_CONFIG_HOME"), "taskapi", Name)
	case getenv("HOME") != "":
		return filepath.Join(getenv("HOME"), ".config/taskapi", Name)
	}
	return ""
}

// ReadMachine returns the values of a machine's settings file. Errors: *FileError, and those of the file system.
func ReadMachine(path string) (Values, error) {
	return read(path, Keys(), dataKeys(), "belongs to a data directory: put it into DATA_DIR/"+Name)
}

// ReadData returns the values of a data directory's settings file, which may be missing.
func ReadData(dir string) (Values, error) {
	all, err := read(filepath.Join(dir, Name), dataKeys(), Keys(),
		"belongs to the machine: put it into /etc/taskapi/"+Name+
			" or your own settings file")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return all, err
}

// FileError lists what is wrong with a settings file, with lines and columns.
type FileError struct{ Problems []string }

func (e *FileError) Error() string { return strings.Join(e.Problems, "\n") }

// read returns the values of a file that may have some keys. It refuses others, with the words for those of another
// file.
func read(path string, keys, others []Key, elsewhere string) (Values, error) {
	if path == "" {
		return nil, errNoPath
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	source, err := filehead.Read(path, maxFile+1)
	if err != nil {
		return nil, fmt.Errorf("settings file: %w", err)
	}
	if err := safedir.TrustFile(path); err != nil {
		return nil, fmt.Errorf("settings file %s: %w", path, err)
	}
	if len(source) > maxFile {
		return nil, fmt.Errorf("settings file %s: it has more than %d bytes", path, maxFile)
	}
	p := parser{path: path, source: source, keys: keys, others: others, elsewhere: elsewhere}
	file, problems := hclsyntax.ParseConfig(source, path, hcl.InitialPos)
	for _, d := range problems {
		p.problem(*cmp.Or(d.Subject, &hcl.Range{Start: hcl.InitialPos}), "%s %s", d.Summary+".", d.Detail)
	}
	if body, ok := file.Body.(*hclsyntax.Body); ok && len(problems) == 0 {
		p.body("", body)
	}
	if len(p.wrong) > 0 {
		slices.SortFunc(p.wrong, func(a, b problem) int { return cmp.Compare(a.at, b.at) })
		e := &FileError{}
		for _, w := range p.wrong {
			e.Problems = append(e.Problems, w.text)
		}
		return nil, e
	}
	return p.values.sorted(), nil
}

type parser struct {
	path         string
	source       []byte
	keys, others []Key
	elsewhere    string
	values       Values
	wrong        []problem
}

type problem struct {
	at   int // the byte
	text string
}

func (p *parser) problem(at hcl.Range, format string, args ...any) {
	p.wrong = append(p.wrong, problem{at.Start.Byte, fmt.Sprintf("%s:%d:%d: %s", p.path, at.Start.Line, at.Start.Column,
		fmt.Sprintf(format, args...))})
}

// body takes the settings of a block, whose name and a dot are the prefix.
func (p *parser) body(prefix string, body *hclsyntax.Body) {
	for name, a := range body.Attributes {
		p.attribute(prefix+name, a)
	}
	for _, b := range body.Blocks {
		switch {
		case prefix != "":
			p.problem(b.TypeRange, "a block can't stand in the block %q", strings.TrimSuffix(prefix, "."))
		case labelled(every(), b.Type) != nil:
			p.labelled(b)
		case len(b.Labels) > 0:
			p.problem(b.TypeRange, "the block %q takes no label", b.Type)
		case len(b.Body.Attributes) == 0 && !slices.ContainsFunc(p.keys, func(k Key) bool {
			return strings.HasPrefix(k.Name, b.Type+".")
		}):
			p.problem(b.TypeRange, "there is no block %q", b.Type)
		default:
			p.body(b.Type+".", b.Body)
		}
	}
}

func (p *parser) attribute(key string, a *hclsyntax.Attribute) {
	k, err := find(p.keys, key)
	if err != nil {
		if _, other := find(p.others, key); other == nil {
			err = fmt.Errorf("%s %s", key, p.elsewhere)
		}
		p.problem(a.NameRange, "%v", err)
		return
	}
	texts, ok := p.texts(k, a.Expr)
	if !ok {
		return
	}
	from := fmt.Sprintf("%s:%d", p.path, a.NameRange.Start.Line)
	one := Values{}
	for _, text := range texts {
		if text == "" {
			err = cmp.Or(err, errEmpty)
		}
		err = cmp.Or(err, one.Set(key, text, filepath.Dir(p.path), from), p.values.once(key))
	}
	if err == nil {
		_, err = one.resolve()
		err = errors.Unwrap(err) // without the place, which problem adds
	}
	if err != nil {
		p.problem(a.Expr.Range(), "%v", err)
		return
	}
	p.values = append(p.values, one...)
}

// texts returns the texts that an expression gives a setting. It returns false for an expression that it refuses.
func (p *parser) texts(k Key, e hclsyntax.Expression) (texts []string, ok bool) {
	if k.pairs {
		if texts, ok = p.pairs(e); !ok {
			p.problem(e.Range(), "%s must be %s", k.Name, wordsOf(cty.Map(cty.String)))
		}
		return texts, ok
	}
	value, diags := e.Value(nil)
	if diags.HasErrors() {
		p.problem(e.Range(), "%s: it must be a plain value: %s", k.Name, diags[0].Detail)
		return nil, false
	}
	texts, ok = textsOf(value)
	if !ok || !k.List && (value.Type().IsTupleType() || len(texts) != 1) {
		want := "a text, a number, true or false"
		if k.List {
			want = "a text, or a list of texts"
		}
		p.problem(e.Range(), "%s must be %s", k.Name, want)
		return nil, false
	}
	return texts, true
}

// pairs returns NAME=TEXT for each item of { NAME = "TEXT" }. A reference in a text stays as the file has it.
func (p *parser) pairs(e hclsyntax.Expression) (texts []string, ok bool) {
	object, ok := e.(*hclsyntax.ObjectConsExpr)
	if !ok {
		return nil, false
	}
	for _, item := range object.Items {
		name, diags := item.KeyExpr.Value(nil)
		text, ok := p.unresolved(item.ValueExpr)
		if diags.HasErrors() || !ok || name.Type() != cty.String || !name.IsKnown() || name.IsNull() {
			return nil, false
		}
		texts = append(texts, name.AsString()+"="+text)
	}
	return texts, true
}

// unresolved returns a text with its references as they are written, such as ${job.id}.
func (p *parser) unresolved(e hclsyntax.Expression) (text string, ok bool) {
	parts := []hclsyntax.Expression{e}
	switch e := e.(type) {
	case *hclsyntax.TemplateExpr:
		parts = e.Parts
	case *hclsyntax.TemplateWrapExpr:
		parts = []hclsyntax.Expression{e.Wrapped}
	case *hclsyntax.ScopeTraversalExpr:
		return "", false // without quotes
	}
	for _, part := range parts {
		switch part := part.(type) {
		case *hclsyntax.LiteralValueExpr:
			texts, ok := textsOf(part.Val)
			if !ok {
				return "", false
			}
			text += texts[0]
		case *hclsyntax.ScopeTraversalExpr:
			text += "${" + string(part.Range().SliceBytes(p.source)) + "}"
		default:
			return "", false
		}
	}
	return text, true
}

// once refuses a setting that is there, such as in an earlier block of the same name.
func (all Values) once(key string) error {
	if all.get(key) != nil {
		return fmt.Errorf("%s is set twice", key)
	}
	return nil
}

// textsOf returns the texts of a value or of a list of values.
func textsOf(v cty.Value) (texts []string, ok bool) {
	if v.IsNull() {
		return nil, false
	}
	if v.Type().IsTupleType() {
		for _, element := range v.AsValueSlice() {
			text, ok := textsOf(element)
			if !ok || element.Type().IsTupleType() {
				return nil, false
			}
			texts = append(texts, text...)
		}
		return texts, true
	}
	s, err := convert.Convert(v, cty.String)
	if err != nil {
		return nil, false
	}
	return []string{s.AsString()}, true
}
