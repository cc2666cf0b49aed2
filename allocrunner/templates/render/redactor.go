package render

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode"
)

// Redactor removes the values of variables, secrets and files from names and errors. A template may change a value,
// such as to upper case, before it uses the value as a name. So once a template may have read a value, a part of a name
// is shown only if its words are known from elsewhere: from the templates, the environment or the names in other
// answers.
type Redactor struct {
	text    string // of the templates
	known   []Known
	secret  bool            // an answer has a value
	allowed map[string]bool // words
}

// Redactor returns the redactor of a request's names, and of the errors of its queries.
func (r Request) Redactor() *Redactor {
	d := &Redactor{known: r.Known, allowed: map[string]bool{}}
	allow := func(text string) {
		for word := range words(text) {
			d.allowed[word] = true
		}
	}
	for _, t := range r.Templates {
		d.text += t.Text + "\n"
		allow(t.Destination)
	}
	allow(d.text)
	allow(r.Namespace)
	for _, entry := range r.Env {
		if key, value, _ := strings.Cut(entry, "="); !strings.Contains(key, "TOKEN") {
			allow(value)
		}
	}
	for _, k := range r.Known {
		k.Answer.secrets(func(value string) { d.secret = d.secret || value != "" })
		allow(k.Answer.names())
	}
	return d
}

// words returns the words of a text, which consist of letters and digits.
func words(text string) func(yield func(string) bool) {
	return strings.FieldsFuncSeq(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// names returns all of an answer but its values.
func (a Answer) names() string {
	var keys []string
	if a.Variable != nil {
		for key := range a.Variable.Items {
			keys = append(keys, key)
		}
	}
	for _, pair := range a.Pairs {
		keys = append(keys, pair.Path, pair.Key)
	}
	a.Text, a.Variable, a.Value, a.Pairs, a.Secret, a.PEMs = "", nil, nil, nil, nil, nil
	rest, _ := json.Marshal(a) // of strings, numbers and maps of strings
	return strings.Join(append(keys, string(rest)), "\n")
}

// hidden reports whether a part of a name is not shown.
func (d *Redactor) hidden(part string) bool {
	if !d.secret || strings.Contains(d.text, part) {
		return false
	}
	for word := range words(part) {
		if !d.allowed[word] {
			return true
		}
	}
	return false
}

// Name returns the words of Query.String, without values.
func (d *Redactor) Name(q Query) string {
	name, _ := d.redact(q)
	return name
}

// redact returns the name of a query, and the parts that it hides, the longest first.
func (d *Redactor) redact(q Query) (name string, hidden []string) {
	for _, field := range []*string{&q.Name, &q.Namespace, &q.Region, &q.Tag, &q.Choose, &q.Partition, &q.Near} {
		parts := strings.Split(*field, "/")
		for i, part := range parts {
			if d.hidden(part) {
				hidden = append(hidden, part)
				parts[i] = redacted
			}
		}
		*field = strings.Join(parts, "/")
	}
	slices.SortFunc(hidden, func(a, b string) int { return len(b) - len(a) }) // one may be part of another
	return d.replace(q.String()), hidden
}

// Words returns the words of an error of a query, without values.
func (d *Redactor) Words(q Query, words string) string {
	name, hidden := d.redact(q)
	words = strings.ReplaceAll(words, q.String(), name)
	for _, part := range hidden {
		if len(part) < shortSecret {
			continue // it is part of many words
		}
		for _, form := range []string{part, url.PathEscape(part), url.QueryEscape(part)} {
			words = strings.ReplaceAll(words, form, redacted)
		}
	}
	return d.replace(words)
}

func (d *Redactor) replace(words string) string {
	return replaceValues(words, d.text, func(add func(string)) {
		for _, k := range d.known {
			k.Answer.secrets(add)
		}
	})
}
