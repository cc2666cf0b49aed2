package etcd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/internal/privatefile"
)

// Settings say where the store is that the machines share.
type Settings struct {
	Address      string // etcd://HOST:PORT,HOST:PORT... or etcds:// for TLS; empty for none
	KeyFile      string // with the key that seals all values
	TLSCAFile    string
	TLSCertFile  string
	TLSKeyFile   string
	User         string
	PasswordFile string
}

const (
	keySize     = 32
	maxSecret   = 4 << 10
	maxPEM      = 1 << 20
	defaultName = "taskapi"
)

// Configured reports whether there is such a store.
func (s Settings) Configured() bool { return s != Settings{} }

// CheckAddress refuses an address of another form.
func CheckAddress(address string) error {
	_, _, err := Settings{Address: address}.endpoints()
	return err
}

// Check refuses settings that don't go together, whatever the files contain.
func (s Settings) Check() error {
	if !s.Configured() {
		return nil
	}
	endpoints, _, err := s.endpoints()
	switch {
	case s.Address == "":
		return errors.New("the block cluster has no address: set address = \"etcd://HOST:PORT\"")
	case err != nil:
		return err
	case s.KeyFile == "":
		return errors.New("cluster.address needs cluster.key_file, the key that seals the values: " +
			"head -c 32 /dev/urandom > cluster.key makes one; copy that file to every machine")
	case (s.TLSCertFile == "") != (s.TLSKeyFile == ""):
		return errors.New("a client certificate for etcd needs its key, and a key its certificate: set both " +
			"cluster.tls_cert_file and cluster.tls_key_file")
	case (s.User == "") != (s.PasswordFile == ""):
		return errors.New("a user of etcd needs a password, and a password a user: set both cluster.user and " +
			"cluster.password_file")
	case (s.TLSCAFile != "" || s.TLSCertFile != "") && strings.HasPrefix(endpoints[0], "http://"):
		return fmt.Errorf("cluster.tls_ca_file and cluster.tls_cert_file are for TLS: write the address as etcds%s",
			strings.TrimPrefix(s.Address, "etcd"))
	}
	return nil
}

// endpoints returns the URLs of the address, and the prefix of the keys.
func (s Settings) endpoints() (urls []string, prefix string, err error) {
	scheme, rest, _ := strings.Cut(s.Address, "://")
	scheme, known := map[string]string{"etcd": "http://", "etcds": "https://"}[scheme]
	hosts, name, _ := strings.Cut(rest, "/")
	wrong := fmt.Errorf("%q is not the address of etcd: it must be etcd://HOST:PORT, with commas between several, "+
		"or etcds://HOST:PORT for TLS; /NAME behind the last one sets another prefix of the keys than %s",
		redacted(s.Address), defaultName)
	if !known || strings.ContainsAny(name, "\x00\n ") || strings.Contains(hosts, "@") {
		return nil, "", wrong
	}
	for host := range strings.SplitSeq(hosts, ",") {
		name, port, err := net.SplitHostPort(host)
		if err != nil || name == "" || port == "" {
			return nil, "", wrong
		}
		if u, err := url.Parse(scheme + host); err != nil || u.Host != host || u.Port() != port {
			return nil, "", wrong
		}
		urls = append(urls, scheme+host)
	}
	return urls, cmp.Or(strings.Trim(name, "/"), defaultName) + "/", nil
}

// redacted returns an address without a password that may stand in it.
func redacted(address string) string {
	if at := strings.LastIndex(address, "@"); at >= 0 {
		return "…" + address[at:]
	}
	return address
}

// TryFiles returns the error that the first use of the store would get from a file.
func (s Settings) TryFiles() error {
	if !s.Configured() {
		return nil
	}
	if err := s.Check(); err != nil {
		return err
	}
	if _, err := s.key(); err != nil {
		return err
	}
	if _, err := s.tls(); err != nil {
		return err
	}
	if s.User == "" {
		return nil
	}
	_, err := s.password()
	return err
}

// Config returns the configuration of the store. seal returns the sealer of a key for a purpose.
func (s Settings) Config(seal func(key []byte, purpose string) (cluster.Sealer, error)) Config {
	_, prefix, _ := s.endpoints() // Client returns the error
	return Config{
		Prefix: prefix,
		Client: func() (c client.Config, err error) {
			if err := s.Check(); err != nil {
				return c, err
			}
			c.User, c.Password = s.User, s.password
			c.TLS = s.tls
			c.Endpoints, _, err = s.endpoints()
			return c, err
		},
		Sealer: func(purpose string) (cluster.Sealer, error) {
			key, err := s.key()
			if err != nil {
				return nil, err
			}
			return seal(key, purpose)
		},
	}
}

func (s Settings) key() ([]byte, error) {
	key, _, err := privatefile.Read(s.KeyFile, keySize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("cluster.key_file %s is not there: copy it from another machine, or make the first one "+
			"with head -c %d /dev/urandom > %[1]s", s.KeyFile, keySize)
	case err != nil && !errors.Is(err, privatefile.ErrNotRegular):
		return nil, fmt.Errorf("cluster.key_file: %w", err)
	case err != nil || len(key) != keySize:
		return nil, fmt.Errorf("cluster.key_file %s must have exactly %d bytes: head -c %[2]d /dev/urandom > %[1]s makes "+
			"another one, with which this machine reads nothing of the earlier values", s.KeyFile, keySize)
	}
	return key, nil
}

func (s Settings) password() (string, error) {
	text, _, err := privatefile.Read(s.PasswordFile, maxSecret)
	if err != nil {
		return "", fmt.Errorf("cluster.password_file: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", fmt.Errorf("cluster.password_file %s is empty: it must have the password of cluster.user", s.PasswordFile)
	}
	return password, nil
}

// tls returns what a connection needs. Certificates are renewed while taskapi runs.
func (s Settings) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.TLSCAFile != "" {
		pem, err := os.ReadFile(s.TLSCAFile)
		if err != nil {
			return nil, fmt.Errorf("cluster.tls_ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if len(pem) > maxPEM || !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cluster.tls_ca_file %s has no certificate in PEM", s.TLSCAFile)
		}
	}
	if s.TLSCertFile == "" {
		return c, nil
	}
	pair, err := tls.LoadX509KeyPair(s.TLSCertFile, s.TLSKeyFile)
	if err != nil {
		return nil, fmt.Errorf("cluster.tls_cert_file %s, cluster.tls_key_file %s: %w", s.TLSCertFile, s.TLSKeyFile, err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}
