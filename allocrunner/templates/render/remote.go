package render

import (
	"bytes"
	"cmp"
	"crypto/sha1" //nolint:gosec // consul-template's word for the arguments of a write
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"
)

// ErrDenied means that the task may not read what its template asks for.
var ErrDenied = errors.New("the task may not read it")

// Program is a program beside taskapi that answers queries, if it is configured.
type Program string

const (
	Consul Program = "Consul"
	Vault  Program = "Vault"
)

// Program returns the program that answers queries of the kind; empty for taskapi.
func (k Kind) Program() Program {
	switch k {
	case Key, Keys, HealthService, CatalogServices:
		return Consul
	case Secret, Written, Secrets, Certificate:
		return Vault
	}
	return ""
}

// Remote returns the program that a function of templates needs; empty for none.
func Remote(function string) Program {
	switch function {
	case "key", "keyExists", "keyOrDefault", "ls", "safeLs", "tree", "safeTree", "service", "services":
		return Consul
	case "secret", "secrets", "pkiCert":
		return Vault
	}
	return ""
}

// KeyPair is a key of Consul's store. Its fields, and those of the types below, are consul-template's.
type KeyPair struct {
	Path, Key, Value                           string
	CreateIndex, ModifyIndex, LockIndex, Flags uint64
	Session                                    string
}

// ConsulService is a healthy instance of a service in Consul.
type ConsulService struct {
	Node, NodeID, NodeAddress     string
	NodeTaggedAddresses, NodeMeta map[string]string
	ServiceMeta                   map[string]string
	Address                       string
	ServiceTaggedAddresses        map[string]capi.ServiceAddress
	ID, Name                      string
	Tags                          ServiceTags
	Checks                        capi.HealthChecks
	Status                        string
	Port                          int
	Weights                       capi.AgentWeights
}

// CatalogSnippet is the name of a service in Consul, with all of its tags.
type CatalogSnippet struct {
	Name string
	Tags ServiceTags
}

// VaultSecret is an answer of Vault.
type VaultSecret struct {
	RequestID, LeaseID string
	LeaseDuration      int // seconds
	Renewable          bool
	Data               SecretData
	Warnings           []string
	Auth               *VaultAuth     `json:",omitempty"`
	WrapInfo           *VaultWrapInfo `json:",omitempty"`
}

// VaultAuth is a token of Vault that an answer contains.
type VaultAuth struct {
	ClientToken, Accessor string
	Policies              []string
	Metadata              map[string]string
	LeaseDuration         int
	Renewable             bool
}

// VaultWrapInfo is the token for an answer that Vault keeps.
type VaultWrapInfo struct {
	Token           string
	TTL             int
	CreationTime    time.Time
	WrappedAccessor string
}

// PEMs are a certificate with its key and its authorities. A template finds them below Data, too.
type PEMs struct {
	Cert, Key, CA string
	CAChain       []string
}

// Data returns p.
func (p PEMs) Data() PEMs { return p }

// SecretData is the data of a secret, whose numbers are json.Number.
type SecretData map[string]any

// UnmarshalJSON reads numbers without a loss.
func (d *SecretData) UnmarshalJSON(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode((*map[string]any)(d))
}

// texts calls add with each text and number in a value of JSON.
func texts(v any, add func(string)) {
	switch v := v.(type) {
	case string:
		add(v)
	case json.Number:
		add(v.String())
	case SecretData:
		texts(map[string]any(v), add)
	case map[string]any:
		for _, value := range v {
			texts(value, add)
		}
	case []any:
		for _, value := range v {
			texts(value, add)
		}
	}
}

// secrets calls add with each value of an answer that may be secret.
func (a Answer) secrets(add func(string)) {
	add(a.Text)
	if a.Variable != nil {
		for _, v := range a.Variable.Items {
			add(v)
		}
	}
	if a.Value != nil {
		add(*a.Value)
	}
	for _, pair := range a.Pairs {
		add(pair.Value)
	}
	if s := a.Secret; s != nil {
		texts(s.Data, add)
		if s.Auth != nil {
			add(s.Auth.ClientToken)
		}
		if s.WrapInfo != nil {
			add(s.WrapInfo.Token)
		}
	}
	if a.PEMs != nil {
		add(a.PEMs.Key)
	}
}

// The forms of the arguments, as consul-template has them.
const (
	placeForm      = `(\?(?P<query>[[:word:]\-\_\=\&]+))?(@(?P<region>[[:word:]\.\-\_]+))?`
	keyForm        = `\A/?(?P<name>[^@\?]+)` + placeForm + `\z`
	healthForm     = `\A((?P<tag>[[:word:]=:\.\-\_]+)\.)?(?P<name>[[:word:]\-\_]+)` + placeForm + nearForm
	nearForm       = `(~(?P<near>[[:word:]\.\-\_]+))?(\|(?P<filter>[[:word:]\,]+))?\z`
	catalogForm    = `\A` + placeForm + `\z`
	defaultFilter  = "passing"
	allowedFilters = "any passing warning critical maintenance"
)

// value returns the value of a key of Consul; nil if there is none, or it is not known yet.
func (e *execution) value(path string) (q Query, value *string, err error) {
	if q, err = parse(Key, keyForm, path); err != nil {
		return q, nil, err
	}
	answer, _, err := e.ask(q)
	return q, answer.Value, err
}

// key returns the value of a key. The template waits for a key that does not exist.
func (e *execution) key(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	q, value, err := e.value(path)
	if err != nil {
		return "", err
	}
	if value == nil {
		e.lacks(q)
		return "", nil
	}
	return *value, nil
}

func (e *execution) keyExists(path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	_, value, err := e.value(path)
	return value != nil, err
}

func (e *execution) keyOrDefault(path, otherwise string) (string, error) {
	if path == "" {
		return otherwise, nil
	}
	_, value, err := e.value(path)
	if err != nil {
		return "", err
	}
	if value == nil || *value == "" {
		return otherwise, nil
	}
	return *value, nil
}

// pairs returns a function that returns the wanted keys below a prefix. If it is safe, the template waits while there
// is no such key.
func (e *execution) pairs(safe bool, wants func(key string) bool) func(string) ([]*KeyPair, error) {
	return func(prefix string) ([]*KeyPair, error) {
		found := []*KeyPair{}
		if prefix == "" {
			return found, nil
		}
		q, err := parse(Keys, keyForm, prefix)
		if err != nil {
			return found, err
		}
		answer, _, err := e.ask(q)
		for _, pair := range answer.Pairs {
			if wants(pair.Key) {
				found = append(found, pair)
			}
		}
		if safe && len(found) == 0 {
			e.lacks(q)
		}
		return found, err
	}
}

func isTop(key string) bool  { return key != "" && !strings.Contains(key, "/") }
func isLeaf(key string) bool { return key != "" && !strings.HasSuffix(key, "/") }

func (e *execution) service(words ...string) ([]*ConsulService, error) {
	if len(words) == 0 || words[0] == "" {
		return []*ConsulService{}, nil
	}
	q, err := parse(HealthService, healthForm, strings.Join(words, "|"))
	if err != nil {
		return nil, err
	}
	answer, _, err := e.ask(q)
	return append([]*ConsulService{}, answer.Health...), err
}

func (e *execution) services(words ...string) ([]*CatalogSnippet, error) {
	q, err := parse(CatalogServices, catalogForm, strings.Join(words, ""))
	if err != nil {
		return nil, err
	}
	answer, _, err := e.ask(q)
	return append([]*CatalogSnippet{}, answer.Catalog...), err
}

// byKey groups keys by the first part of their names.
func byKey(pairs []*KeyPair) map[string]map[string]*KeyPair {
	groups := map[string]map[string]*KeyPair{}
	for _, pair := range pairs {
		top, key, _ := strings.Cut(pair.Key, "/")
		if key == "" {
			continue
		}
		if groups[top] == nil {
			groups[top] = map[string]*KeyPair{}
		}
		renamed := *pair
		renamed.Key = key
		groups[top][key] = &renamed
	}
	return groups
}

// byMeta groups services by the values of metadata, whose keys commas separate. A key with |int is that of a number.
func byMeta(keys string, services []*ConsulService) (map[string][]*ConsulService, error) {
	strange := regexp.MustCompile("[^a-zA-Z0-9_-]")
	groups := map[string][]*ConsulService{}
	for _, s := range services {
		var parts []string
		for key := range strings.SplitSeq(keys, ",") {
			name, isNumber := strings.CutSuffix(key, "|int")
			value := s.ServiceMeta[name]
			switch {
			case isNumber:
				number, err := strconv.Atoi(value)
				if err != nil && value != "" {
					return nil, fmt.Errorf("byMeta: cannot parse %q as number", value)
				}
				value = fmt.Sprintf("%05d", number)
			case value == "":
				value = "_no_" + name + "_"
			}
			parts = append(parts, strange.ReplaceAllString(value, "_"))
		}
		group := strings.Join(parts, "_")
		groups[group] = append(groups[group], s)
	}
	return groups, nil
}

// explode nests the values of keys by the slashes in their names.
func explode(pairs []*KeyPair) (map[string]any, error) {
	flat := make(map[string]any, len(pairs))
	for _, pair := range pairs {
		flat[pair.Key] = pair.Value
	}
	return explodeMap(flat)
}

// secret reads a path of Vault or, with KEY=VALUE arguments, writes to it. The template waits for a secret that does
// not exist.
func (e *execution) secret(words ...string) (any, error) {
	if len(words) == 0 {
		return nil, nil
	}
	q := Query{Kind: Secret}
	if len(words) > 1 {
		q.Kind = Written
	}
	var err error
	if q.Data, err = written(words[1:]); err != nil {
		return nil, err
	}
	if q.Name, err = vaultPath(q.Kind, words[0]); err != nil {
		return nil, err
	}
	answer, _, err := e.ask(q)
	if err != nil {
		return nil, err
	}
	if answer.Secret == nil {
		e.lacks(q)
		return nil, nil
	}
	return answer.Secret, nil
}

// pkiCert returns a certificate that Vault issues, with its key, until shortly before the certificate expires.
func (e *execution) pkiCert(words ...string) (any, error) {
	if len(words) == 0 {
		return nil, nil
	}
	path, _, _ := strings.Cut(words[0], "?")
	name, err := vaultPath(Certificate, path)
	if err != nil {
		return nil, err
	}
	data, err := written(words[1:])
	if err != nil {
		return nil, err
	}
	answer, _, err := e.ask(Query{Kind: Certificate, Name: name, Data: cmp.Or(data, "{}"),
		Destination: e.template.Destination})
	if err != nil || answer.PEMs == nil {
		return nil, err
	}
	return *answer.PEMs, nil
}

// written returns KEY=VALUE words as JSON; empty for no words.
func written(words []string) (string, error) {
	if len(words) == 0 {
		return "", nil
	}
	data := map[string]string{}
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok && word != "" {
			return "", fmt.Errorf("not k=v pair %q", word)
		}
		if ok {
			data[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	encoded, err := json.Marshal(data)
	return string(encoded), err
}

// secrets lists the names below a path of Vault.
func (e *execution) secrets(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	name, err := vaultPath(Secrets, path)
	if err != nil {
		return nil, err
	}
	answer, _, err := e.ask(Query{Kind: Secrets, Name: name})
	return answer.Names, err
}

func vaultPath(kind Kind, path string) (string, error) {
	name := strings.Trim(strings.TrimSpace(path), "/")
	if name == "" {
		return "", fmt.Errorf("%s: invalid format: %q", kind, name)
	}
	return name, nil
}

// vaultString returns the words that consul-template has for a query to Vault, without the values that are written.
func (q Query) vaultString() string {
	switch q.Kind {
	case Secret:
		path, query, _ := strings.Cut(q.Name, "?")
		if values, err := url.ParseQuery(query); err == nil && values.Get("version") != "" {
			path += ".v" + values.Get("version")
		}
		return fmt.Sprintf("%s(%s)", q.Kind, path)
	case Written:
		var data map[string]string
		_ = json.Unmarshal([]byte(q.Data), &data) // secret has encoded it
		sum := sha1.New()                         //nolint:gosec // see above
		for _, key := range slices.Sorted(maps.Keys(data)) {
			fmt.Fprintf(sum, "%s=%q", key, data[key])
		}
		return fmt.Sprintf("%s(%s -> %.4x)", q.Kind, q.Name, sum.Sum(nil))
	case Certificate:
		return fmt.Sprintf("%s(%s->%s)", q.Kind, q.Name, q.Destination)
	}
	return fmt.Sprintf("%s(%s)", q.Kind, q.Name)
}
