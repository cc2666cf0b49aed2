// Package render renders the templates of tasks as Nomad's consul-template does, in a process of its own, which is
// bounded in memory, processor time and output. It knows no store, no file and no task. A template asks Queries. The
// caller of a Session answers them, and renders again with the Answers.
package render

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"

	"taskapi/internal/limited"
)

// The bounds of one Session.
const (
	// MaxOutput bounds the output of all templates together, in bytes.
	MaxOutput = 16 << 20
	// MaxAnswers bounds what the templates read together, in bytes. The caller of a Session holds it in memory.
	MaxAnswers = 32 << 20
	// maxStack bounds the stack of a template that calls itself.
	maxStack = 64 << 20
)

// limits are those of the process. A large template takes a tenth of a second.
var limits = limited.Limits{Memory: 512 << 20, Seconds: 5}

// Template is one template.
type Template struct {
	Source      string // as errors name it: a path, or "(dynamic)" if the job file has the text
	Text        string
	Left, Right string // delimiters
	MissingKey  bool   // a key that a map lacks is an error
	Destination string // the file, in which a certificate of Vault stays
}

// Request asks for templates to be rendered.
type Request struct {
	Templates []Template
	Env       []string // KEY=value
	Namespace string   // of variables that name none
	Known     []Known
}

// Known is an answered query.
type Known struct {
	Query  Query
	Answer Answer
}

// Response has a result for each template of a request.
type Response struct{ Results []Result }

// Result is what became of a template.
type Result struct {
	Output []byte // of no use if queries are Missing
	// Used are the queries of the template. Missing are the used queries that are not answered yet, and those whose
	// answer has no value.
	Used, Missing []Query
	Names         []string // of Missing, as Redact leaves them
	Error         string   // without the values of variables
}

// Kind is what a query is about.
type Kind string

// The kinds of queries.
const (
	Variable  Kind = "nomad.var"
	Variables Kind = "nomad.var.list"
	Service   Kind = "nomad.service"
	Services  Kind = "nomad.services"
	File      Kind = "file"

	Key             Kind = "kv.block" // of Consul, as are the next three
	Keys            Kind = "kv.list"
	HealthService   Kind = "health.service"
	CatalogServices Kind = "catalog.services"

	Secret      Kind = "vault.read" // of Vault, as are the next three
	Written     Kind = "vault.write"
	Secrets     Kind = "vault.list"
	Certificate Kind = "vault.pki"
)

// Query is what a template asks for.
type Query struct {
	Kind      Kind
	Name      string // the path of a variable or a file, the prefix of a list, the name of a service
	Namespace string `json:",omitempty"` // of variables, and Consul's
	Region    string `json:",omitempty"` // empty for the job's own; Consul's datacenter
	Tag       string `json:",omitempty"` // of a service: only registrations with it
	Choose    string `json:",omitempty"` // of a service: COUNT|KEY
	Partition string `json:",omitempty"` // Consul's
	Near      string `json:",omitempty"` // of a service of Consul: sorted by the distance to this node
	Filter    string `json:",omitempty"` // of a service of Consul: the states, with commas
	Data      string `json:",omitempty"` // that is written to Vault, as JSON

	Destination string `json:",omitempty"` // of the template that asks for a certificate
}

// String returns the words that Nomad's events have for a query.
func (q Query) String() string {
	switch {
	case q.Kind.Program() == Vault:
		return q.vaultString()
	case q.Kind == Variable || q.Kind == Variables:
		words := "nomad.var.block"
		if q.Kind == Variables {
			words = string(q.Kind)
		}
		return fmt.Sprintf("%s(%s@%s.%s)", words, q.Name, cmp.Or(q.Namespace, "default"), cmp.Or(q.Region, "global"))
	}
	var name strings.Builder
	if q.Tag != "" {
		name.WriteString(q.Tag + ".")
	}
	for _, part := range [][2]string{{"", q.Name}, {"@", q.Region}, {"@partition=", q.Partition}, {"@ns=", q.Namespace},
		{"~", q.Near}, {"|", q.Filter}, {":", q.Choose}} {
		if part[1] != "" {
			name.WriteString(part[0] + part[1])
		}
	}
	if name.Len() == 0 {
		return string(q.Kind)
	}
	return fmt.Sprintf("%s(%s)", q.Kind, name.String())
}

// Answer is the value of a query, in the field for its kind.
type Answer struct {
	Variable *NomadVariable          `json:",omitempty"` // nil if there is none
	List     []*NomadVarMeta         `json:",omitempty"`
	Service  []*NomadService         `json:",omitempty"`
	Services []*NomadServicesSnippet `json:",omitempty"`
	Text     string                  `json:",omitempty"` // of a file
	Value    *string                 `json:",omitempty"` // of a key; nil if there is none
	Pairs    []*KeyPair              `json:",omitempty"`
	Health   []*ConsulService        `json:",omitempty"`
	Catalog  []*CatalogSnippet       `json:",omitempty"`
	Secret   *VaultSecret            `json:",omitempty"` // nil if there is none
	Names    []string                `json:",omitempty"` // of secrets
	PEMs     *PEMs                   `json:",omitempty"` // of a certificate
}

// Size returns about how many bytes of memory an answer takes.
func (a Answer) Size() int { return size(reflect.ValueOf(a)) }

func size(v reflect.Value) (n int) {
	const each = 16 // of a value, without its parts
	switch v.Kind() {
	case reflect.String:
		n = v.Len()
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			n = size(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			n += size(v.Index(i))
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			n += size(key) + size(value)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			n += size(field)
		}
	}
	return n + each
}

// execution is one template that is being executed.
type execution struct {
	request       Request
	template      Template
	known         map[Query]Answer
	used, missing []Query
}

// The bounds of the queries of one template.
const (
	maxQueries = 1000
	maxName    = 4 << 10
)

// ask returns the answer to a query, and notes the query as missing if its answer is not known.
func (e *execution) ask(q Query) (Answer, bool, error) {
	switch {
	case len(q.Name)+len(q.Choose)+len(q.Data) > maxName:
		return Answer{}, false, fmt.Errorf("%s: the name is longer than %d bytes", q.Kind, maxName)
	case slices.Contains(e.used, q):
	case len(e.used) == maxQueries:
		return Answer{}, false, fmt.Errorf("a template may read %d variables, services, secrets and files", maxQueries)
	default:
		e.used = append(e.used, q)
	}
	answer, known := e.known[q]
	if !known {
		e.lacks(q)
	}
	return answer, known, nil
}

func (e *execution) lacks(q Query) {
	if !slices.Contains(e.missing, q) {
		e.missing = append(e.missing, q)
	}
}

// errTooLong is the end of a template whose output is too long.
var errTooLong = fmt.Errorf("the templates of a task may render %d MiB together", MaxOutput>>20)

// limitedBuffer takes as much output as is left.
type limitedBuffer struct {
	bytes.Buffer

	left *int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if *b.left -= len(p); *b.left < 0 {
		return 0, errTooLong
	}
	return b.Buffer.Write(p)
}

// Render renders in this process, without bounds on memory and time. Only the process that is started for it should
// call it, and tests.
func Render(req Request) Response {
	known := make(map[Query]Answer, len(req.Known))
	for _, k := range req.Known {
		known[k.Query] = k.Answer
	}
	left := MaxOutput
	var all Response
	redact := sync.OnceValue(req.Redactor)
	for _, t := range req.Templates {
		e := execution{request: req, template: t, known: known}
		output, err := e.run(&left)
		result := Result{Output: output, Used: e.used, Missing: e.missing}
		for _, q := range e.missing {
			result.Names = append(result.Names, redact().Name(q))
		}
		if err != nil {
			result.Error = cmp.Or(t.Source, "(dynamic)") + ": " + e.redact(err.Error())
		}
		all.Results = append(all.Results, result)
	}
	return all
}

// Parse parses a template. Errors: Go's, with the line, such as that of a function that does not exist.
func Parse(t Template) (*template.Template, error) { return (&execution{template: t}).parse() }

func (e *execution) parse() (*template.Template, error) {
	t := template.New("").Delims(e.template.Left, e.template.Right)
	missing := "missingkey=zero"
	if e.template.MissingKey {
		missing = "missingkey=error"
	}
	return t.Funcs(e.functions(t)).Option(missing).Parse(e.template.Text)
}

func (e *execution) run(left *int) ([]byte, error) {
	t, err := e.parse()
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	out := limitedBuffer{left: left}
	if err := t.Execute(&out, nil); err != nil {
		if errors.Is(err, errTooLong) {
			err = errTooLong
		}
		return nil, fmt.Errorf("execute: %w", err)
	}
	return out.Bytes(), nil
}

// redacted stands for a value in an error.
const redacted = "[redacted]"

// shortSecret is the length below which the values of variables are not looked for in errors: a short value is part of
// many words.
const shortSecret = 4

// replaceValues removes values from words that the text of a template does not have.
func replaceValues(words, text string, each func(add func(string))) string {
	var values []string
	each(func(v string) {
		if len(v) >= shortSecret && strings.Contains(words, v) && !strings.Contains(text, v) {
			values = append(values, v)
		}
	})
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) }) // one may be part of another
	for _, v := range values {
		words = strings.ReplaceAll(words, v, redacted)
	}
	return words
}

// redact removes from an error all text that may come from a variable, a file or the environment: their values, and
// text that a function has quoted or failed with, unless the template has the same text.
func (e *execution) redact(words string) string {
	words = replaceValues(words, e.template.Text, func(add func(string)) {
		for _, answer := range e.known {
			answer.secrets(add)
		}
		for _, entry := range e.request.Env {
			_, v, _ := strings.Cut(entry, "=")
			add(v)
		}
	})
	const fail = "error calling sprig_fail: " // any text follows
	if before, message, fails := strings.Cut(words, fail); fails && !strings.Contains(e.template.Text, message) {
		words = before + fail + redacted
	}
	for _, shows := range []string{"range can't iterate over ", "can't use "} { // a value follows
		if before, value, found := strings.Cut(words, shows); found && !strings.Contains(e.template.Text, value) {
			words = before + shows + redacted
		}
	}
	before, cause, calling := strings.Cut(words, "error calling ")
	if !calling {
		return words
	}
	quoted := regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`|'[^']*'")
	cause = quoted.ReplaceAllStringFunc(cause, func(q string) string {
		if strings.Contains(e.template.Text, q[1:len(q)-1]) {
			return q
		}
		return q[:1] + redacted + q[len(q)-1:]
	})
	long := regexp.MustCompile("[0-9]{5,}") // such as an index; the bounds in our own errors are shorter
	return before + "error calling " + long.ReplaceAllStringFunc(cause, func(number string) string {
		if strings.Contains(e.template.Text, number) {
			return number
		}
		return redacted
	})
}
