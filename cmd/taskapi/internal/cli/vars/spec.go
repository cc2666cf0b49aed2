package vars

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"taskapi/cmd/taskapi/internal/cli/base"
)

// MaxSpec bounds a specification of a variable: 64 KiB of items, in JSON's quotes, and what is known of it.
const MaxSpec = 512 << 10

// VariableSpec is a specification of a variable as 'nomad var put' takes it in JSON.
type VariableSpec struct {
	Namespace   string
	Path        string
	ModifyIndex uint64
	Items       map[string]string
}

// ReadSpec reads a specification from a file, or from standard input for "-".
func ReadSpec(name string, stdin io.Reader) (VariableSpec, error) {
	text, err := base.ReadInput(name, stdin, MaxSpec)
	if err != nil {
		return VariableSpec{}, err
	}
	if name == "-" {
		name = "standard input"
	}
	return ParseSpec(name, text)
}

// ParseSpec reads a specification. Errors name places and keys, and no values.
func ParseSpec(name string, text []byte) (VariableSpec, error) {
	s, err := parseSpec(text)
	if err != nil {
		return s, fmt.Errorf("%s: %w", name, err)
	}
	if s.Items == nil {
		s.Items = map[string]string{}
	}
	return s, nil
}

// parseSpec reads an object with Items, as the API has it, or one of texts alone, which are the items.
func parseSpec(text []byte) (VariableSpec, error) {
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
	const want = `write {"Items": {"KEY": "VALUE"}}`
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
