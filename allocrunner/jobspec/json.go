package jobspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/internal/hcleval"
)

// parseJSON reads a job as the API has it, bare or as {"Job": ...}. Unknown fields are errors with their position.
func parseJSON(filename string, src []byte) (*api.Job, error) {
	check := jsonChecker{filename: filename, src: src, dec: json.NewDecoder(bytes.NewReader(src))}
	if err := shallowJSON(src); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, check.fail(syntax.Offset, "Invalid JSON", "%s.", syntax)
		}
		return nil, check.fail(0, "Invalid JSON", "%s.", err)
	}
	var outermost struct{ Job json.RawMessage }
	wrapped := json.Unmarshal(src, &outermost) == nil && outermost.Job != nil
	document := jobDocument{Job: &api.Job{}}
	var target any = document.Job
	if wrapped {
		target = &document
	}
	check.dec.UseNumber()
	if err := check.value(reflect.TypeOf(target), ""); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	if err := dec.Decode(target); err != nil {
		if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, check.fail(mismatch.Offset, "Unsuitable value", "%s", mismatchText(mismatch))
		}
		return nil, check.fail(0, "Invalid JSON", "%s.", err)
	}
	plainNumbers(document.Job)
	if document.Job == nil || document.Job.Name == nil && (document.Job.ID == nil || *document.Job.ID == "") {
		return nil, check.fail(0, "Missing job", `A JSON job needs at least an "ID".`)
	}
	return document.Job, nil
}

// jobDocument is the form in which the API accepts a job and `nomad job run -output` prints it.
type jobDocument struct {
	Job *api.Job
}

func mismatchText(e *json.UnmarshalTypeError) string {
	if e.Type == durationType {
		return fmt.Sprintf("%s: durations in JSON are whole nanoseconds (30s is 30000000000), not a %s.", e.Field,
			e.Value)
	}
	if e.Field == "" {
		return fmt.Sprintf("A job is an object, and this is of type %s.", e.Value)
	}
	return fmt.Sprintf("%s: %s can't be of type %s.", e.Field, e.Type, e.Value)
}

// jsonChecker walks JSON and Go types side by side to find what encoding/json drops or accepts silently: unknown
// fields, null elements, and numbers that no type can hold. The text is valid JSON.
type jsonChecker struct {
	filename string
	src      []byte
	dec      *json.Decoder
	objects  int
}

// fail returns an error about a place in the text.
func (c *jsonChecker) fail(offset int64, summary, format string, args ...any) error {
	before := c.src[:min(max(offset, 0), int64(len(c.src)))]
	pos := hcl.Pos{Line: 1 + bytes.Count(before, []byte("\n")),
		Column: len(before) - bytes.LastIndexByte(before, '\n'), Byte: len(before)}
	at := hcl.Range{Filename: c.filename, Start: pos, End: pos}
	return &Error{Diags: hcl.Diagnostics{hcleval.ErrorAt(at, summary, format, args...)},
		sources: map[string][]byte{c.filename: c.src}}
}

// maxObjects bounds the objects of a JSON job. A canonical job has about three for each block of a job file.
const maxObjects = 4 * maxBlocks

// dropped are fields that a server writes and that api.Job does not have. They say nothing about what to run.
var dropped = map[string]bool{"Service.Namespace": true}

func (c *jsonChecker) value(t reflect.Type, path string) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	token, err := c.dec.Token()
	if err != nil {
		return c.fail(c.dec.InputOffset(), "Invalid JSON", "%s.", err)
	}
	switch token := token.(type) {
	case json.Number:
		if _, err := token.Float64(); err != nil { // the job could not be saved with it
			return c.fail(c.dec.InputOffset()-int64(len(token)), "Number out of range",
				"%s is larger than any number of 64 bits.", path)
		}
	case json.Delim:
		if token == '{' {
			return c.object(t, path)
		}
		return c.array(t, path)
	}
	return nil
}

func (c *jsonChecker) object(t reflect.Type, path string) error {
	if c.objects++; c.objects > maxObjects {
		return c.fail(c.dec.InputOffset(), "Too large", "The job has more than %d objects.", maxObjects)
	}
	for c.dec.More() {
		token, err := c.dec.Token()
		if err != nil {
			return c.fail(c.dec.InputOffset(), "Invalid JSON", "%s.", err)
		}
		key, _ := token.(string)
		offset := c.dec.InputOffset() - int64(len(key)) - 2 // the key and its quotes
		inner := strings.TrimPrefix(path+"."+key, ".")
		next, known := memberType(t, key)
		if !known {
			var names []string
			for field := range t.Fields() {
				names = append(names, field.Name)
			}
			return c.fail(offset, "Unknown field", "A job has no field %s.%s", inner, didYouMean(key, names))
		}
		if next != nil && t.Kind() == reflect.Map && c.nextIsNull() {
			return c.fail(c.dec.InputOffset(), "Null value", "%s is null; leave it out.", inner)
		}
		if err := c.value(next, inner); err != nil {
			return err
		}
	}
	_, _ = c.dec.Token() // the closing brace; the text was valid before
	return nil
}

func (c *jsonChecker) array(t reflect.Type, path string) error {
	var elem reflect.Type
	if t != nil && t.Kind() == reflect.Slice {
		elem = t.Elem()
	}
	for i := 0; c.dec.More(); i++ {
		inner := fmt.Sprintf("%s[%d]", path, i)
		if elem != nil && elem.Kind() != reflect.Interface && c.nextIsNull() {
			return c.fail(c.dec.InputOffset(), "Null value", "%s is null; leave it out.", inner)
		}
		if err := c.value(elem, inner); err != nil {
			return err
		}
	}
	_, _ = c.dec.Token()
	return nil
}

// nextIsNull reports whether the next value is null, without reading it.
func (c *jsonChecker) nextIsNull() bool {
	rest := bytes.TrimLeft(c.src[c.dec.InputOffset():], " \t\r\n,:")
	return bytes.HasPrefix(rest, []byte("null"))
}

// memberType returns the type of an object's member, or nil when it may have any type. It returns false when a struct
// has no such field.
func memberType(t reflect.Type, key string) (reflect.Type, bool) {
	switch {
	case t == nil:
		return nil, true
	case t.Kind() == reflect.Map && t.Elem().Kind() != reflect.Interface:
		return t.Elem(), true
	case t.Kind() != reflect.Struct:
		return nil, true // decoding says that an object is no value for it
	}
	for f := range t.Fields() {
		if f.Tag.Get("json") != "-" && strings.EqualFold(f.Name, key) {
			return f.Type, true
		}
	}
	return nil, dropped[t.Name()+"."+key]
}

// DecodeJob decodes a job that Parse returned and encoding/json encoded.
func DecodeJob(data []byte) (*api.Job, error) {
	job := &api.Job{}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(job); err != nil {
		return nil, fmt.Errorf("decode job: %w", err)
	}
	plainNumbers(job)
	return job, nil
}

// plainNumbers turns the json.Numbers inside map[string]any into int, or float64 when they are not whole, as HCL gives
// them.
func plainNumbers(job *api.Job) {
	eachMap(reflect.ValueOf(job), func(m reflect.Value) {
		if values, ok := reflect.TypeAssert[map[string]any](m); ok {
			plainNumber(values)
		}
	})
}

func plainNumber(value any) any {
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return int(n)
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = plainNumber(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = plainNumber(v[key])
		}
	}
	return value
}
