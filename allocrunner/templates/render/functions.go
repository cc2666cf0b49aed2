package render

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5" //nolint:gosec // templates ask for it
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode"

	"dario.cat/mergo"
	"github.com/BurntSushi/toml"
	sprig "github.com/go-task/slim-sprig/v3"
	sockaddr "github.com/hashicorp/go-sockaddr/template"
	"github.com/huandu/xstrings"
	"gopkg.in/yaml.v2"
)

// functions returns the functions of a template: those of consul-template, with sprig's under sprig_, and a function
// that fails in place of each that is refused.
func (e *execution) functions(t *template.Template) template.FuncMap {
	functions := template.FuncMap{
		"nomadVar": e.nomadVar, "nomadVarExists": e.nomadVarExists,
		"nomadVarList": e.nomadVarList(false), "nomadVarListSafe": e.nomadVarList(true),
		"nomadService": e.nomadService, "nomadServices": e.nomadServices,
		"key": e.key, "keyExists": e.keyExists, "keyOrDefault": e.keyOrDefault,
		"ls": e.pairs(false, isTop), "safeLs": e.pairs(true, isTop),
		"tree": e.pairs(false, isLeaf), "safeTree": e.pairs(true, isLeaf),
		"service": e.service, "services": e.services, "secret": e.secret, "secrets": e.secrets,
		"pkiCert": e.pkiCert,
		"file":    e.file, "env": e.env, "mustEnv": e.mustEnv, "envOrDefault": e.envOrDefault,
		"executeTemplate": executeTemplate(t), "scratch": scratchFunc(),
	}
	maps.Copy(functions, helpers())
	for name, function := range sprig.HermeticTxtFuncMap() {
		functions["sprig_"+name] = function
	}
	for name, function := range moreSprig() {
		functions["sprig_"+name] = function
	}
	for name, why := range Refused() {
		functions[name] = func(...any) (string, error) { return "", errors.New(why) }
	}
	return functions
}

// helpers are the functions that need nothing but their arguments.
func helpers() template.FuncMap {
	return template.FuncMap{
		"base64Decode":    base64Decode("base64Decode", base64.StdEncoding),
		"base64Encode":    func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		"base64URLDecode": base64Decode("base64URLDecode", base64.URLEncoding),
		"base64URLEncode": func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) },

		"byKey": byKey, "byMeta": byMeta, "explode": explode,
		"byPort": groups[int]("byPort", "Port"), "byTag": groups[string]("byTag", "Tags"),
		"contains":       func(v, list any) bool { return in(list, v) },
		"containsAll":    containsSome(true, true),
		"containsAny":    containsSome(false, false),
		"containsNone":   containsSome(true, false),
		"containsNotAll": containsSome(false, true),
		"in":             in,

		"explodeMap": explodeMap, "mergeMap": mergeMap(), "mergeMapWithOverride": mergeMap(mergo.WithOverride),
		"indent":     indent,
		"join":       func(sep string, list []string) string { return strings.Join(list, sep) },
		"loop":       loop,
		"replaceAll": func(from, to, s string) string { return strings.ReplaceAll(s, from, to) },
		"split":      split, "splitToMap": splitToMap,
		"regexMatch": regexMatch, "regexReplaceAll": regexReplaceAll,
		"sockaddr": func(words ...string) (string, error) {
			return sockaddr.Parse("{{ " + strings.Join(words, " ") + " }}")
		},
		"timestamp": timestamp,
		"toLower":   strings.ToLower, "toTitle": toTitle, "toUpper": strings.ToUpper,
		"trim":       func(cutset, s string) string { return strings.Trim(s, cutset) },
		"trimPrefix": func(prefix, s string) string { return strings.TrimPrefix(s, prefix) },
		"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
		"trimSpace":  strings.TrimSpace,

		"parseBool":  parser("parseBool", strconv.ParseBool),
		"parseFloat": parser("parseFloat", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }),
		"parseInt":   parser("parseInt", func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }),
		"parseUint":  parser("parseUint", func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }),
		"parseJSON":  document(json.Unmarshal), "parseYAML": document(yaml.Unmarshal),

		"toJSON": toJSON("", true), "toJSONPretty": toJSON("  ", true),
		"toUnescapedJSON": toJSON("", false), "toUnescapedJSONPretty": toJSON("  ", false),
		"toTOML": toTOML, "toYAML": toYAML,

		"sha256Hex":     func(s string) string { sum := sha256.Sum256([]byte(s)); return hex.EncodeToString(sum[:]) },
		"md5sum":        md5sum,
		"hmacSHA256Hex": hmacSHA256Hex,

		"add": arithmetic("add"), "subtract": arithmetic("subtract"), "multiply": arithmetic("multiply"),
		"divide": arithmetic("divide"), "modulo": arithmetic("modulo"),
		"minimum": extreme("minimum", -1), "maximum": extreme("maximum", 1),
	}
}

// moreSprig are functions of sprig that slim-sprig leaves out, because they need more than the standard library.
func moreSprig() template.FuncMap {
	merge := func(options ...func(*mergo.Config)) func(map[string]any, ...map[string]any) (any, error) {
		return func(to map[string]any, from ...map[string]any) (any, error) {
			for _, m := range from {
				if err := mergo.Merge(&to, m, options...); err != nil {
					return nil, err
				}
			}
			return to, nil
		}
	}
	return template.FuncMap{
		"merge": merge(), "mustMerge": merge(),
		"mergeOverwrite": merge(mergo.WithOverride), "mustMergeOverwrite": merge(mergo.WithOverride),
		"camelcase": xstrings.ToPascalCase, "kebabcase": xstrings.ToKebabCase, "snakecase": xstrings.ToSnakeCase,
		"shuffle":   xstrings.Shuffle,
		"sha512sum": func(s string) string { sum := sha512.Sum512([]byte(s)); return hex.EncodeToString(sum[:]) },
		"nospace": func(s string) string {
			return strings.Map(func(c rune) rune {
				if unicode.IsSpace(c) {
					return -1
				}
				return c
			}, s)
		},
	}
}

// lookUp returns a variable of the task's environment.
func (e *execution) lookUp(name string) (string, bool) {
	for _, entry := range e.request.Env {
		if key, value, _ := strings.Cut(entry, "="); key == name {
			return value, true
		}
	}
	return "", false
}

func (e *execution) env(name string) string {
	value, _ := e.lookUp(name)
	return value
}

func (e *execution) mustEnv(name string) (string, error) {
	value, _ := e.lookUp(name)
	if value == "" {
		return "", fmt.Errorf("required environment variable %q is empty", name)
	}
	return value, nil
}

func (e *execution) envOrDefault(name, otherwise string) string {
	if value, ok := e.lookUp(name); ok {
		return value
	}
	return otherwise
}

// executeTemplate returns the function that executes a template which another has defined. Its output is no output yet,
// but takes memory, so it is bounded alike.
func executeTemplate(t *template.Template) func(string, ...any) (string, error) {
	return func(name string, data ...any) (string, error) {
		if len(data) > 1 {
			return "", fmt.Errorf("executeTemplate: wrong number of arguments, expected 1 or 2, but got %d", len(data)+1)
		}
		var dot any
		if len(data) == 1 {
			dot = data[0]
		}
		left := MaxOutput
		out := limitedBuffer{left: &left}
		if err := t.ExecuteTemplate(&out, name, dot); err != nil {
			return "", err
		}
		return out.String(), nil
	}
}

func base64Decode(name string, encoding *base64.Encoding) func(string) (string, error) {
	return func(s string) (string, error) {
		decoded, err := encoding.DecodeString(s)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		return string(decoded), nil
	}
}

// groups returns a function that groups services by a field, those with several values by each.
func groups[K comparable](function, field string) func(any) (map[K][]any, error) {
	return func(list any) (map[K][]any, error) {
		found := map[K][]any{}
		switch list.(type) {
		case nil:
			return found, nil
		case []*NomadService, []*NomadServicesSnippet, []*ConsulService, []*CatalogSnippet:
		default:
			return nil, fmt.Errorf("%s: wrong argument type %T", function, list)
		}
		services := reflect.ValueOf(list)
		for i := range services.Len() {
			service := services.Index(i)
			var keys []K
			switch v := reflect.Indirect(service).FieldByName(field); {
			case !v.IsValid():
				return nil, fmt.Errorf("%s: wrong argument type %T", function, list)
			case v.Kind() == reflect.Slice:
				keys, _ = reflect.TypeAssert[[]K](v.Convert(reflect.TypeFor[[]K]()))
			default:
				key, _ := reflect.TypeAssert[K](v)
				keys = append(keys, key)
			}
			for _, k := range keys {
				found[k] = append(found[k], service.Interface())
			}
		}
		return found, nil
	}
}

// in reports whether a list has an element, or a text a part. Only integers, floats and texts are compared.
func in(list, v any) bool {
	within, value := reflect.ValueOf(list), reflect.ValueOf(v)
	switch within.Kind() {
	case reflect.String:
		return value.IsValid() && value.Type() == within.Type() && strings.Contains(within.String(), value.String())
	case reflect.Array, reflect.Slice:
		for i := range within.Len() {
			element := within.Index(i)
			if element.Kind() == reflect.Interface {
				element = element.Elem()
			}
			found := false
			switch {
			case !element.IsValid() || !value.IsValid():
			case element.CanInt() && value.CanInt():
				found = element.Int() == value.Int()
			case element.CanFloat() && value.CanFloat():
				found = element.Float() == value.Float()
			case element.Kind() == reflect.String && element.Type() == value.Type():
				found = element.String() == value.String()
			}
			if found {
				return true
			}
		}
	}
	return false
}

// containsSome returns a function that says atEnd after all of the values, and the opposite as soon as one of them is
// contained, or with invert is not.
func containsSome(atEnd, invert bool) func([]any, any) bool {
	return func(values []any, list any) bool {
		for _, v := range values {
			if in(list, v) != invert {
				return !atEnd
			}
		}
		return atEnd
	}
}

// explodeMap nests the values of a map by the slashes in their keys.
func explodeMap(flat map[string]any) (map[string]any, error) {
	nested := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(flat)) {
		at, names := nested, strings.Split(key, "/")
		last := len(names) - 1
		for i, name := range names[:last] {
			if _, ok := at[name]; !ok {
				at[name] = map[string]any{}
			}
			next, ok := at[name].(map[string]any)
			if !ok {
				return nil, fmt.Errorf("explodeMap: not a map: %q: %q already has value %q",
					strings.Join(names[max(0, i-1):], "/"), name, at[name])
			}
			at = next
		}
		if names[last] != "" {
			at[names[last]] = flat[key]
		}
	}
	return nested, nil
}

func mergeMap(options ...func(*mergo.Config)) func(to, from map[string]any) (map[string]any, error) {
	return func(to, from map[string]any) (map[string]any, error) {
		err := mergo.Map(&to, from, options...)
		return to, err
	}
}

// indent puts spaces before each line that is not empty.
func indent(spaces int, s string) (string, error) {
	if spaces < 0 {
		return "", errors.New("indent value must be a positive integer")
	}
	if spaces > MaxOutput {
		return "", errTooLong
	}
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = strings.Repeat(" ", spaces) + line
		}
	}
	return strings.Join(lines, "\n"), nil
}

// loop counts from 0, or from the first argument, to the last and not further.
func loop(bounds ...any) (<-chan int64, error) {
	if len(bounds) == 1 {
		bounds = []any{0, bounds[0]}
	}
	if len(bounds) != 2 {
		return nil, fmt.Errorf("loop: wrong number of arguments, expected 1 or 2, but got %d", len(bounds))
	}
	var ends [2]int64
	for i, bound := range bounds {
		switch v := reflect.ValueOf(bound); {
		case v.CanInt():
			ends[i] = v.Int()
		case v.CanUint():
			ends[i] = int64(v.Uint()) //nolint:gosec // as consul-template does
		case v.Kind() == reflect.String:
			var err error
			if ends[i], err = parser("parseInt", func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) })(
				v.String()); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("loop: bad argument type: %T", bound)
		}
	}
	numbers := make(chan int64)
	go func() { // ends with the process, if the template stops before
		defer close(numbers)
		for i := ends[0]; i < ends[1]; i++ {
			numbers <- i
		}
	}()
	return numbers, nil
}

func split(sep, s string) []string {
	if s = strings.TrimSpace(s); s == "" {
		return []string{}
	}
	return strings.Split(s, sep)
}

func splitToMap(sep, assign, s string) map[string]string {
	found := map[string]string{}
	if s = strings.TrimSpace(s); s == "" {
		return found
	}
	for part := range strings.SplitSeq(s, sep) {
		if key, value, ok := strings.Cut(part, assign); ok {
			found[key] = value
		}
	}
	return found
}

func regexMatch(expression, s string) (bool, error) {
	compiled, err := regexp.Compile(expression)
	if err != nil {
		return false, err
	}
	return compiled.MatchString(s), nil
}

func regexReplaceAll(expression, by, s string) (string, error) {
	compiled, err := regexp.Compile(expression)
	if err != nil {
		return "", err
	}
	return compiled.ReplaceAllString(s, by), nil
}

func timestamp(format ...string) (string, error) {
	now := time.Now().UTC()
	switch {
	case len(format) == 0:
		return now.Format(time.RFC3339), nil
	case len(format) > 1:
		return "", fmt.Errorf("timestamp: wrong number of arguments, expected 0 or 1, but got %d", len(format))
	case format[0] == "unix":
		return strconv.FormatInt(now.Unix(), 10), nil
	}
	return now.Format(format[0]), nil
}

// toTitle makes the first letter of each word a capital. An apostrophe or a full stop between two letters is part of a
// word (Unicode, UAX 29).
func toTitle(s string) string {
	inWord := func(c rune) bool { return unicode.In(c, unicode.L, unicode.N, unicode.M) || c == '_' }
	runes := []rune(s)
	within := false
	for i, c := range runes {
		joins := strings.ContainsRune("'’.·:", c) && i > 0 && i+1 < len(runes) &&
			unicode.IsLetter(runes[i-1]) && unicode.IsLetter(runes[i+1])
		switch {
		case joins:
		case !inWord(c):
			within = false
		case !within && unicode.IsLetter(c):
			runes[i], within = unicode.ToTitle(c), true
		}
	}
	return string(runes)
}

// parser returns a function that reads a value from a text; the zero value from an empty one.
func parser[T any](name string, parse func(string) (T, error)) func(string) (T, error) {
	return func(s string) (v T, err error) {
		if s == "" {
			return v, nil
		}
		if v, err = parse(s); err != nil {
			return v, fmt.Errorf("%s: %w", name, err)
		}
		return v, nil
	}
}

// document returns a function that reads a document; an empty one is an empty map.
func document(unmarshal func([]byte, any) error) func(string) (any, error) {
	return func(s string) (any, error) {
		if s == "" {
			return map[string]any{}, nil
		}
		var data any
		if err := unmarshal([]byte(s), &data); err != nil {
			return nil, err
		}
		return data, nil
	}
}

func toJSON(indentation string, escapeHTML bool) func(any) (string, error) {
	return func(v any) (string, error) {
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(escapeHTML)
		encoder.SetIndent("", indentation)
		if err := encoder.Encode(v); err != nil {
			return "", fmt.Errorf("toJSON: %w", err)
		}
		return strings.TrimRight(out.String(), "\r\n"), nil
	}
}

func toTOML(v any) (string, error) {
	var out bytes.Buffer
	if err := toml.NewEncoder(&out).Encode(v); err != nil {
		return "", fmt.Errorf("toTOML: %w", err)
	}
	return strings.TrimSpace(out.String()), nil
}

func toYAML(v any) (string, error) {
	out, err := yaml.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("toYAML: %w", err)
	}
	return string(bytes.TrimSpace(out)), nil
}

func md5sum(s string) string {
	sum := md5.Sum([]byte(s)) //nolint:gosec // templates ask for it
	return hex.EncodeToString(sum[:])
}

func hmacSHA256Hex(message, key string) string {
	sum := hmac.New(sha256.New, []byte(key))
	sum.Write([]byte(message))
	return hex.EncodeToString(sum.Sum(nil))
}
