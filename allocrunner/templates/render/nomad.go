package render

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// NomadVariable is a variable. Its fields and methods, and those of the types below, are consul-template's, since
// templates use them.
type NomadVariable struct {
	NomadVarMeta

	Items map[string]string
}

// nomadVariable is a variable as a template sees it above the items.
type nomadVariable struct {
	Namespace, Path          string
	CreateIndex, ModifyIndex uint64
	CreateTime, ModifyTime   nanoTime
	Items                    nomadVarItems

	of *NomadVariable
}

func (v nomadVariable) Metadata() *NomadVarMeta { return &v.of.NomadVarMeta }

// nomadVarItems are a variable's items.
type nomadVarItems map[string]nomadVarItem

func newItems(v *NomadVariable) nomadVarItems {
	parent := &nomadVariable{v.Namespace, v.Path, v.CreateIndex, v.ModifyIndex, v.CreateTime, v.ModifyTime,
		make(nomadVarItems, len(v.Items)), v}
	for key, value := range v.Items {
		parent.Items[key] = nomadVarItem{key, value, parent}
	}
	return parent.Items
}

// Keys returns the keys, sorted, as do the next two methods.
func (v nomadVarItems) Keys() []string { return slices.Sorted(maps.Keys(v)) }

func (v nomadVarItems) Values() []string {
	values := make([]string, 0, len(v))
	for _, key := range v.Keys() {
		values = append(values, v[key].Value)
	}
	return values
}

func (v nomadVarItems) Tuples() []struct{ K, V string } {
	tuples := make([]struct{ K, V string }, 0, len(v))
	for _, key := range v.Keys() {
		tuples = append(tuples, struct{ K, V string }{key, v[key].Value})
	}
	return tuples
}

func (v nomadVarItems) Metadata() *NomadVarMeta {
	if parent := v.Parent(); parent != nil {
		return parent.Metadata()
	}
	return nil
}

func (v nomadVarItems) Parent() *nomadVariable {
	for _, item := range v {
		return item.parent
	}
	return nil
}

func (v nomadVarItems) ItemsMap() map[string]any {
	if len(v) == 0 {
		return nil
	}
	items := make(map[string]any, len(v))
	for key, item := range v {
		items[key] = item.Value
	}
	return items
}

// nomadVarItem is one item, which a template may print as its value.
type nomadVarItem struct {
	Key, Value string

	parent *nomadVariable
}

func (i nomadVarItem) String() string               { return i.Value }
func (i nomadVarItem) Metadata() *NomadVarMeta      { return i.parent.Metadata() }
func (i nomadVarItem) Parent() *nomadVariable       { return i.parent }
func (i nomadVarItem) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%q", i.Value), nil }

// NomadVarMeta is a variable without its items.
type NomadVarMeta struct {
	Namespace, Path          string
	CreateIndex, ModifyIndex uint64
	CreateTime, ModifyTime   nanoTime
}

// NewMeta returns the metadata of a variable.
func NewMeta(of *api.VariableMetadata) *NomadVarMeta {
	return &NomadVarMeta{of.Namespace, of.Path, of.CreateIndex, of.ModifyIndex, nanoTime(of.CreateTime),
		nanoTime(of.ModifyTime)}
}

func (m NomadVarMeta) String() string { return m.Path }

// nanoTime is a time in nanoseconds since 1970.
type nanoTime int64

func (t nanoTime) String() string  { return t.Time().String() }
func (t nanoTime) Time() time.Time { return time.Unix(0, int64(t)) }

// NomadService is a registration of a service.
type NomadService struct {
	ID, Name, Node, Address string
	Port                    int
	Datacenter              string
	Tags                    ServiceTags
	JobID, AllocID          string
}

// NomadServicesSnippet is a service, without its registrations.
type NomadServicesSnippet struct {
	Name string
	Tags ServiceTags
}

// ServiceTags are the tags of a service, sorted.
type ServiceTags []string

// The forms of the arguments, as consul-template has them.
const (
	namespaceForm = `(@(?P<namespace>[[:word:]\-\_]+))?(\.(?P<region>[[:word:]\-\_]+))?\z`
	regionForm    = `(@(?P<region>[[:word:]\.\-\_]+))?\z`
	variableForm  = `\A/?(?P<name>[^@]+)` + namespaceForm
	listForm      = `\A/?(?P<name>[^@]*)(@(?P<namespace>([[:word:]\-\_]+|\*)))?(\.(?P<region>[[:word:]\-\_]+))?\z`
	serviceForm   = `\A((?P<tag>[[:word:]=:\.\-\_]+)\.)?(?P<name>[[:word:]\-\_]+)` + regionForm
	servicesForm  = `\A` + regionForm
)

// parse returns the query that an argument of a form names.
func parse(kind Kind, form, argument string) (Query, error) {
	expression := regexp.MustCompile(form)
	match := expression.FindStringSubmatch(argument)
	if match == nil {
		return Query{}, fmt.Errorf("%s: invalid format: %q", kind, argument)
	}
	part := func(name string) string {
		if i := expression.SubexpIndex(name); i >= 0 {
			return match[i]
		}
		return ""
	}
	q := Query{Kind: kind, Name: part("name"), Namespace: part("namespace"), Region: part("region"), Tag: part("tag"),
		Near: part("near")}
	values, err := url.ParseQuery(part("query"))
	if err != nil {
		return q, fmt.Errorf("%s: invalid query: %q: %w", kind, part("query"), err)
	}
	for key := range values {
		switch key {
		case "ns":
			q.Namespace = values.Get(key)
		case "partition":
			q.Partition = values.Get(key)
		default:
			return q, fmt.Errorf("%s: invalid query parameter key %q in query %q: ns and partition are supported", kind, key,
				part("query"))
		}
	}
	if kind != HealthService {
		return q, nil
	}
	filters := strings.FieldsFunc(cmp.Or(part("filter"), defaultFilter), func(c rune) bool { return c == ',' })
	for _, filter := range filters {
		if !slices.Contains(strings.Fields(allowedFilters), filter) {
			return q, fmt.Errorf("%s: invalid filter: %q in %q", kind, filter, argument)
		}
	}
	slices.Sort(filters)
	q.Filter = strings.Join(filters, ",")
	return q, nil
}

// variable returns the variable of a path, and whether that is known; nil if there is none.
func (e *execution) variable(path string) (q Query, v *NomadVariable, known bool, err error) {
	if q, err = parse(Variable, variableForm, strings.Trim(strings.TrimSpace(path), "/")); err != nil {
		return q, nil, false, err
	}
	if q.Namespace == "" {
		q.Namespace = e.request.Namespace
	}
	answer, known, err := e.ask(q)
	return q, answer.Variable, known, err
}

// nomadVar returns the items of a variable. The template waits for a variable that does not exist.
func (e *execution) nomadVar(path string) (nomadVarItems, error) {
	if path == "" {
		return nil, nil
	}
	q, v, known, err := e.variable(path)
	switch {
	case err != nil || !known:
		return nil, err
	case v == nil:
		e.lacks(q)
		return nil, nil
	}
	return newItems(v), nil
}

func (e *execution) nomadVarExists(path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	_, v, _, err := e.variable(path)
	return v != nil, err
}

// nomadVarList returns a function that lists variables. If it is safe, the template waits while there is no variable.
func (e *execution) nomadVarList(safe bool) func(...string) ([]*NomadVarMeta, error) {
	return func(prefix ...string) ([]*NomadVarMeta, error) {
		if len(prefix) > 1 {
			return nil, fmt.Errorf(`nomadVarList takes either a single "prefix" parameter or none for all available `+
				"variables; got: %d", len(prefix))
		}
		q, err := parse(Variables, listForm, strings.Join(prefix, ""))
		if err != nil {
			return nil, err
		}
		if strings.Trim(q.Name, "/") == "" {
			q.Name = ""
		}
		if q.Namespace == "" {
			q.Namespace = e.request.Namespace
		}
		answer, known, err := e.ask(q)
		if known && safe && len(answer.List) == 0 {
			e.lacks(q)
		}
		return append([]*NomadVarMeta{}, answer.List...), err
	}
}

func (e *execution) nomadServices(region ...string) ([]*NomadServicesSnippet, error) {
	q, err := parse(Services, servicesForm, strings.Join(region, ""))
	if err != nil {
		return nil, err
	}
	answer, _, err := e.ask(q)
	return answer.Services, err
}

// nomadService takes a service, or a count, a key and a service.
func (e *execution) nomadService(params ...any) ([]*NomadService, error) {
	var name, key string
	var count int
	var ok bool
	switch len(params) {
	case 1:
		if name, ok = params[0].(string); !ok {
			return nil, errors.New("expected string for <service> argument")
		}
	case 3:
		if count, ok = params[0].(int); !ok {
			return nil, errors.New("expected integer for <count> argument")
		}
		if key, ok = params[1].(string); !ok {
			return nil, errors.New("expected string for <key> argument")
		}
		if name, ok = params[2].(string); !ok {
			return nil, errors.New("expected string for <service> argument")
		}
	default:
		return nil, errors.New("expected arguments <service> or <count> <key> <service>")
	}
	q, err := parse(Service, serviceForm, name)
	if err != nil {
		return nil, err
	}
	if len(params) == 3 {
		q.Choose = fmt.Sprintf("%d|%s", count, key)
	}
	answer, _, err := e.ask(q)
	return answer.Service, err
}

func (e *execution) file(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	if path = strings.TrimSpace(path); path == "" {
		return "", fmt.Errorf("file: invalid format: %q", path)
	}
	answer, _, err := e.ask(Query{Kind: File, Name: path})
	return answer.Text, err
}
