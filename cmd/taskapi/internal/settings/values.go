package settings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"

	"taskapi/cmd/taskapi/internal/agent"
)

// Value is what somebody has given for a setting.
type Value struct {
	Key   string   `json:"key"`
	Texts []string `json:"values"` // one, unless the setting is a list; paths are absolute
	From  string   `json:"from"`   // a flag, -o, or FILE:LINE
}

// said reports whether the value was given for one allocation, and not for the machine.
func (v Value) said() bool { return strings.HasPrefix(v.From, "-") }

// Values are at most one value for each setting.
type Values []Value

// get returns the value of a setting; nil for none.
func (all Values) get(key string) *Value {
	if i := slices.IndexFunc(all, func(v Value) bool { return v.Key == key }); i >= 0 {
		return &all[i]
	}
	return nil
}

// Set adds a text to the values: to those of a list, or as the only one. A relative path is one of dir. Errors: no such
// setting, or a second value.
func (all *Values) Set(key, text, dir, from string) error {
	k, err := find(every(), key)
	if err != nil {
		return err
	}
	if k.absolute != nil {
		text = k.absolute(dir, text)
	}
	switch had := all.get(key); {
	case had == nil:
		*all = append(*all, Value{key, []string{text}, from})
	case !k.List:
		return fmt.Errorf("%s is set twice", key)
	default:
		had.Texts = append(had.Texts, text)
	}
	return nil
}

// Give is Set, but an empty text takes back what the allocation remembers.
func (all *Values) Give(key, text, dir, from string) error {
	k, err := find(every(), key)
	if err == nil && k.fixed {
		err = fmt.Errorf("it belongs to a data directory, not to one run: put it into DATA_DIR/%s", Name)
	}
	if text != "" && err == nil {
		return all.Set(key, text, dir, from)
	}
	*all = append(*all, Value{Key: key, From: from})
	return err
}

// find returns a key. Errors: there is none, with the nearest name.
func find(keys []Key, name string) (Key, error) {
	near, slips := "", 4
	for _, k := range keys {
		if k.Name == name {
			return k, nil
		}
		if d := levenshtein.Distance(name, k.Name, nil); d < slips {
			near, slips = k.Name, d
		}
		switch block, last, _ := strings.Cut(k.Name, "."); name {
		case last: // the block was left out
			near, slips = k.Name, 0
		case block:
			return Key{}, fmt.Errorf("%s is a block: give one of its settings, such as %s", name, k.Name)
		}
	}
	if near != "" {
		return Key{}, fmt.Errorf("there is no setting %q; did you mean %s?", name, near)
	}
	return Key{}, fmt.Errorf("there is no setting %q; 'taskapi config' lists them", name)
}

// ParseOptions returns the values of -o: KEY=VALUE each. KEY= takes back what the allocation remembers. Commas separate
// several audiences.
func ParseOptions(options []string, dir string) (Values, error) {
	var all Values
	for _, option := range options {
		key, text, ok := strings.Cut(option, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("-o %s: it must be KEY=VALUE, such as -o host_ip=127.0.0.1", option)
		}
		texts := []string{text}
		if key == audienceKey {
			texts = strings.Split(text, ",")
		}
		for _, text := range texts {
			if err := all.Give(key, text, dir, "-o"); err != nil {
				return nil, fmt.Errorf("-o %s: %w", option, err)
			}
		}
	}
	return all, nil
}

// over returns the values of all, and those of below for other settings.
func (all Values) over(below Values) Values {
	merged := append(Values{}, all...) // never nil: a record without values is one, too
	for _, v := range below {
		if all.get(v.Key) == nil {
			merged = append(merged, v)
		}
	}
	return slices.DeleteFunc(merged, func(v Value) bool { return len(v.Texts) == 0 })
}

// resolve returns the defaults with the values. An error names where a bad value comes from.
func (all Values) resolve() (agent.Settings, error) {
	s := agent.DefaultSettings()
	for _, k := range every() {
		if v := all.get(k.Name); v != nil {
			if err := k.put(&s, v.Texts); err != nil {
				return s, &valueError{*v, err}
			}
		}
	}
	return s, nil
}

// valueError refuses a value.
type valueError struct {
	Value
	err error
}

func (e *valueError) Error() string {
	switch {
	case strings.HasPrefix(e.From, "--"): // whose name says what it sets
		return fmt.Sprintf("%s %v", e.From, e.err)
	case e.said():
		return fmt.Sprintf("%s %s: %v", e.From, e.Key, e.err)
	}
	return fmt.Sprintf("%s: %s: %v", e.From, e.Key, e.err)
}

func (e *valueError) Unwrap() error { return e.err }

// sorted returns the values in the order of the documents.
func (all Values) sorted() Values {
	place := map[string]int{}
	for i, k := range every() {
		place[k.Name] = i
	}
	slices.SortStableFunc(all, func(a, b Value) int { return cmp.Compare(place[a.Key], place[b.Key]) })
	return all
}
