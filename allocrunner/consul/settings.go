package consul

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// Settings say how the agent is reached, and hold no secret. The zero value means that there is no agent. Paths may be
// relative.
type Settings struct {
	Address       string `json:"address,omitempty"` // HOST:PORT, a URL of http or https, or unix:///PATH
	TokenFile     string `json:"token_file,omitempty"`
	Namespace     string `json:"namespace,omitempty"`
	Partition     string `json:"partition,omitempty"`
	CAFile        string `json:"ca_file,omitempty"`
	CAPath        string `json:"ca_path,omitempty"`
	CertFile      string `json:"cert_file,omitempty"`
	KeyFile       string `json:"key_file,omitempty"`
	TLSServerName string `json:"tls_server_name,omitempty"`
	SSL           bool   `json:"ssl,omitempty"`         // https, when the address does not say
	SkipVerify    bool   `json:"skip_verify,omitempty"` // take any certificate
}

// Secrets are the credentials that are not in a file. They are never saved.
type Secrets struct {
	Token string
	Auth  string // USER:PASSWORD of HTTP's basic authentication
}

// String keeps the secrets out of logs.
func (Secrets) String() string { return "redacted" }

// GoString keeps the secrets out of logs.
func (Secrets) GoString() string { return "redacted" }

// FromEnv reads the environment variables of the official client: CONSUL_HTTP_ADDR and its siblings.
func FromEnv(getenv func(string) string) (Settings, error) {
	s := Settings{
		Address:       getenv("CONSUL_HTTP_ADDR"),
		TokenFile:     getenv("CONSUL_HTTP_TOKEN_FILE"),
		Namespace:     getenv("CONSUL_NAMESPACE"),
		Partition:     getenv("CONSUL_PARTITION"),
		CAFile:        getenv("CONSUL_CACERT"),
		CAPath:        getenv("CONSUL_CAPATH"),
		CertFile:      getenv("CONSUL_CLIENT_CERT"),
		KeyFile:       getenv("CONSUL_CLIENT_KEY"),
		TLSServerName: getenv("CONSUL_TLS_SERVER_NAME"),
	}
	var err error
	s.SSL, err = boolean(getenv, "CONSUL_HTTP_SSL", false)
	verify, verifyErr := boolean(getenv, "CONSUL_HTTP_SSL_VERIFY", true)
	s.SkipVerify = !verify
	return s, errors.Join(err, verifyErr)
}

func boolean(getenv func(string) string, name string, otherwise bool) (bool, error) {
	text := getenv(name)
	if text == "" {
		return otherwise, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return otherwise, fmt.Errorf("%s is %q: it must be true or false", name, text)
	}
	return value, nil
}

// SecretsFromEnv reads the environment variables of the official client: CONSUL_HTTP_TOKEN and CONSUL_HTTP_AUTH.
func SecretsFromEnv(getenv func(string) string) Secrets {
	return Secrets{Token: getenv("CONSUL_HTTP_TOKEN"), Auth: getenv("CONSUL_HTTP_AUTH")}
}

// Over returns s, with the values of base for fields that s leaves empty.
func (s Settings) Over(base Settings) Settings {
	own, under := reflect.ValueOf(&s).Elem(), reflect.ValueOf(base)
	for i := range own.NumField() {
		if own.Field(i).IsZero() {
			own.Field(i).Set(under.Field(i))
		}
	}
	return s
}

// Configured reports whether there is an agent.
func (s Settings) Configured() bool { return s.Address != "" }

// Absolute returns the settings with absolute paths.
func (s Settings) Absolute() Settings {
	for _, path := range []*string{&s.TokenFile, &s.CAFile, &s.CAPath, &s.CertFile, &s.KeyFile} {
		if whole, err := filepath.Abs(*path); err == nil && *path != "" {
			*path = whole
		}
	}
	return s
}

// Check refuses settings that are wrong whatever the files contain. Without an agent, all are accepted.
func (s Settings) Check() error {
	if !s.Configured() {
		return nil
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		return errors.New("a certificate for Consul needs its key, and a key its certificate: set both " +
			"consul.cert_file and consul.key_file")
	}
	_, err := s.endpoint()
	return err
}

// endpoint is where the agent listens.
type endpoint struct {
	base   string // of URLs: http://HOST:PORT/PREFIX
	socket string // the path of a Unix socket, empty for TCP
}

func (s Settings) endpoint() (endpoint, error) {
	if path, ok := strings.CutPrefix(s.Address, "unix://"); ok {
		if !filepath.IsAbs(path) {
			return endpoint{}, fmt.Errorf("address of Consul %q: a Unix socket has an absolute path: unix:///PATH",
				s.Address)
		}
		return endpoint{base: "http://localhost", socket: path}, nil
	}
	text := s.Address
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return endpoint{}, fmt.Errorf("address of Consul %q: it must be HOST:PORT, http://HOST:PORT, https://HOST:PORT or "+
			"unix:///PATH", redact(s.Address))
	case u.User != nil:
		return endpoint{}, fmt.Errorf("address of Consul %q: it must have no password: CONSUL_HTTP_AUTH takes USER:PASSWORD",
			redact(s.Address))
	case u.RawQuery != "" || u.Fragment != "":
		return endpoint{}, fmt.Errorf("address of Consul %q: it must have no query", redact(s.Address))
	}
	if s.SSL {
		u.Scheme = "https"
	}
	return endpoint{base: strings.TrimSuffix(u.String(), "/")}, nil
}

// redact returns an address without the user and the password that it may have.
func redact(address string) string {
	if _, after, ok := strings.Cut(address, "@"); ok {
		return "…@" + after
	}
	return address
}
