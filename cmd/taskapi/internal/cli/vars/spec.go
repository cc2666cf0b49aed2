package vars

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"taskapi/cmd/taskapi/internal/linewriter"
)

// The formats of --out.
const (
	OutTemplate = "go-template"
	OutHCL      = "hcl"
	OutJSON     = "json"
	OutNone     = "none"
	OutTable    = "table"
	OutTerse    = "terse"
)

// maxSpec bounds a specification of a variable: 64 KiB of items, in JSON's quotes, and what is known of it.
const maxSpec = 512 << 10

// VariableSpec is a specification of a variable as 'nomad var put' takes it.
type VariableSpec struct {
	Namespace   string
	Path        string
	ModifyIndex uint64
	Items       map[string]string
}

// ReadBounded reads a file, or standard input for "-", up to a bound.
func ReadBounded(name string, stdin io.Reader) ([]byte, error) {
	from := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxSpec+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sourceName(name), err)
	}
	if len(text) > maxSpec {
		return nil, fmt.Errorf("%s is longer than %d bytes", sourceName(name), maxSpec)
	}
	return text, nil
}

func sourceName(name string) string {
	if name == "-" {
		return "standard input"
	}
	return name
}

// SpecFormat returns the format of a file by the end of its name, or else the given one.
func SpecFormat(name, otherwise string) string {
	switch filepath.Ext(name) {
	case ".json":
		return OutJSON
	case ".hcl":
		return OutHCL
	}
	return otherwise
}

// ReadSpec reads a specification from a file, or from standard input for "-". otherwise is the format of a file whose
// name does not say it.
func ReadSpec(name, otherwise string, stdin io.Reader) (VariableSpec, error) {
	text, err := ReadBounded(name, stdin)
	if err != nil {
		return VariableSpec{}, err
	}
	return ParseSpec(name, SpecFormat(name, otherwise), text)
}

// ParseSpec reads a specification. Errors name places and keys, and no values.
func ParseSpec(name, format string, text []byte) (VariableSpec, error) {
	var s VariableSpec
	var err error
	if format == OutHCL {
		s, err = parseHCLSpec(name, text)
	} else {
		s, err = parseJSONSpec(text)
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", sourceName(name), err)
	}
	if s.Items == nil {
		s.Items = map[string]string{}
	}
	return s, nil
}

// parseJSONSpec reads an object with Items, as the API has it, or one of texts alone, which are the items.
func parseJSONSpec(text []byte) (VariableSpec, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return VariableSpec{}, notJSON(text, err)
	}
	if _, whole := fields["Items"]; !whole && fields["items"] == nil {
		items := map[string]string{}
		for key, value := range fields {
			var text string
			if json.Unmarshal(value, &text) != nil {
				return VariableSpec{}, fmt.Errorf("the value of %q is not a text: put it in quotes", key)
			}
			items[key] = text
		}
		return VariableSpec{Items: items}, nil
	}
	var s struct {
		VariableSpec
		CreateIndex, CreateTime, ModifyTime, Lock any
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return VariableSpec{}, fmt.Errorf("%s must be of another type than %s", wrong.Field, wrong.Value)
		}
		return VariableSpec{}, err
	}
	return s.VariableSpec, nil
}

// notJSON says why a specification is no JSON object, and where, without any of its text.
func notJSON(text []byte, err error) error {
	const want = `write {"Items": {"KEY": "VALUE"}}, or HCL in a file whose name ends in .hcl`
	wrong, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return errors.New("it is no JSON object: " + want)
	}
	before := text[:min(int(wrong.Offset), len(text))]
	if int(wrong.Offset) >= len(text) {
		return fmt.Errorf("line %d: the JSON object does not end: %s",
			1+bytes.Count(bytes.TrimRight(before, "\n"), []byte("\n")), want)
	}
	return fmt.Errorf("line %d: no JSON from here on: %s", 1+bytes.Count(before[:max(0, len(before)-1)], []byte("\n")),
		want)
}

// specAttributes are what a specification in HCL may have.
var specAttributes = []string{"namespace", "path", "create_index", "modify_index", "create_time", "modify_time",
	"items"}

// parseHCLSpec reads attributes, of which items may be a block, too.
func parseHCLSpec(name string, text []byte) (VariableSpec, error) {
	var s VariableSpec
	file, diags := hclsyntax.ParseConfig(text, filepath.Base(name), hcl.InitialPos)
	if diags.HasErrors() {
		return s, placeOf(diags)
	}
	body := file.Body.(*hclsyntax.Body) // hclsyntax's own
	err := eachValue(body.Attributes, func(key string, value cty.Value) (err error) {
		switch key {
		case "namespace":
			s.Namespace, err = textOf(value)
		case "path":
			s.Path, err = textOf(value)
		case "modify_index":
			s.ModifyIndex, err = indexOf(value)
		case "create_index", "create_time", "modify_time":
		case "items":
			s.Items, err = itemsOf(value)
		default:
			err = fmt.Errorf("there is no such attribute; there are %s", strings.Join(specAttributes, ", "))
		}
		return err
	})
	for _, block := range body.Blocks {
		if err != nil {
			break
		}
		if block.Type != "items" || len(block.Labels) > 0 || s.Items != nil {
			return s, fmt.Errorf("line %d: unexpected block %q; there is one, items", block.TypeRange.Start.Line, block.Type)
		}
		s.Items = map[string]string{}
		err = eachValue(block.Body.Attributes, func(key string, value cty.Value) (err error) {
			s.Items[key], err = textOf(value)
			return err
		})
	}
	return s, err
}

// eachValue calls do with the value of each attribute. Errors name the attribute's line.
func eachValue(attributes hclsyntax.Attributes, do func(key string, value cty.Value) error) error {
	for key, attribute := range attributes {
		value, diags := attribute.Expr.Value(nil)
		if diags.HasErrors() {
			return placeOf(diags)
		}
		if err := do(key, value); err != nil {
			return fmt.Errorf("line %d: %s: %w", attribute.SrcRange.Start.Line, key, err)
		}
	}
	return nil
}

// placeOf returns the first mistake with its line, and without the text around it.
func placeOf(diags hcl.Diagnostics) error {
	if diags[0].Subject == nil {
		return errors.New(diags[0].Summary)
	}
	return fmt.Errorf("line %d: %s", diags[0].Subject.Start.Line, diags[0].Summary)
}

// textOf returns a text, also of a number or a boolean, as Nomad takes them.
func textOf(value cty.Value) (string, error) {
	text, err := convert.Convert(value, cty.String)
	if err != nil || text.IsNull() || !text.IsKnown() {
		return "", errors.New("must be a text")
	}
	return text.AsString(), nil
}

func indexOf(value cty.Value) (uint64, error) {
	text, err := textOf(value)
	if err != nil {
		return 0, err
	}
	index, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, errors.New("must be a whole number")
	}
	return index, nil
}

func itemsOf(value cty.Value) (map[string]string, error) {
	if value.IsNull() || !value.IsKnown() || !value.CanIterateElements() || !value.Type().IsObjectType() &&
		!value.Type().IsMapType() {
		return nil, errors.New("must be a map of texts")
	}
	items := map[string]string{}
	for key, value := range value.AsValueMap() {
		text, err := textOf(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		items[key] = text
	}
	return items, nil
}

// VariableHCL returns a variable as a specification in HCL.
func VariableHCL(v *api.Variable) string {
	var b strings.Builder
	fmt.Fprintf(&b, "namespace    = %s\npath         = %s\n", hclQuote(v.Namespace), hclQuote(v.Path))
	fmt.Fprintf(&b, "create_index = %d  # Set by server\n", v.CreateIndex)
	fmt.Fprintf(&b, "modify_index = %d  # Set by server; consulted for check-and-set\n", v.ModifyIndex)
	fmt.Fprintf(&b, "create_time  = %d  # Set by server\nmodify_time  = %d  # Set by server\n\nitems = {\n", v.CreateTime,
		v.ModifyTime)
	for _, key := range SortedKeys(v.Items) {
		fmt.Fprintf(&b, "  %s = %s\n", hclQuote(key), hclQuote(v.Items[key]))
	}
	b.WriteString("}\n")
	return b.String()
}

// hclQuote returns a text as a quoted one of HCL, without anything that is evaluated. Package hclwrite would do the
// same, but its dependency go-cmp takes 220 KB of memory at each start of the program.
func hclQuote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	letters := []rune(text)
	for i, c := range letters {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case (c == '$' || c == '%') && i+1 < len(letters) && letters[i+1] == '{':
			b.WriteRune(c)
			b.WriteRune(c)
		case linewriter.Steers(c):
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func SortedKeys(items map[string]string) []string { return slices.Sorted(maps.Keys(items)) }
