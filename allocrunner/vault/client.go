package vault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"taskapi/allocrunner/templates/render"
)

const (
	requestTimeout = 30 * time.Second // Vault may have to ask a database or to make a key
	maxAnswer      = 4 << 20
	maxWords       = 300 // bytes of an error of Vault's
)

// client makes requests. Several goroutines may use it.
type client struct {
	settings  Settings
	namespace string

	mu   sync.Mutex // held by open, which sets the field below
	http *http.Client
}

// answer is what Vault sends.
type answer struct {
	RequestID     string            `json:"request_id"`
	LeaseID       string            `json:"lease_id"`
	LeaseDuration int               `json:"lease_duration"`
	Renewable     bool              `json:"renewable"`
	Data          render.SecretData `json:"data"`
	Warnings      []string          `json:"warnings"`
	life          time.Duration     // of a certificate
	Auth          *struct {
		ClientToken   string            `json:"client_token"`
		Accessor      string            `json:"accessor"`
		Policies      []string          `json:"policies"`
		Metadata      map[string]string `json:"metadata"`
		LeaseDuration int               `json:"lease_duration"`
		Renewable     bool              `json:"renewable"`
	} `json:"auth"`
	WrapInfo *struct {
		Token           string    `json:"token"`
		TTL             int       `json:"ttl"`
		CreationTime    time.Time `json:"creation_time"`
		WrappedAccessor string    `json:"wrapped_accessor"`
	} `json:"wrap_info"`
}

// refusal is an answer of Vault's that is an error.
type refusal struct {
	status int
	words  string
}

func (r *refusal) Error() string { return fmt.Sprintf("%d: %s", r.status, r.words) }

// isRefusal reports whether Vault has refused a request, so that the same request will not succeed soon.
func isRefusal(err error) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.status/100 == 4 && r.status != http.StatusTooManyRequests && r.status != http.StatusPreconditionFailed
}

func isDenied(err error) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.status == http.StatusForbidden
}

func (c *client) open() (*http.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http != nil {
		return c.http, nil
	}
	transport, err := c.settings.transport()
	if err != nil {
		return nil, err
	}
	c.http = &http.Client{Transport: transport, Timeout: requestTimeout,
		// A standby sends its caller to the active Vault. Another host must not get the token, or the JWT of a login, and
		// neither may go over a connection that is not encrypted.
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			from, to := via[0].URL, req.URL
			if len(via) > 1 || from.Host != to.Host || from.Scheme != to.Scheme {
				return fmt.Errorf("it redirects to %s://%s, which gets no token: give the address of the active Vault",
					to.Scheme, to.Host)
			}
			return nil
		}}
	return c.http, nil
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// do makes a request. It returns nil if there is nothing at the path, and an empty answer if the answer is empty.
func (c *client) do(ctx context.Context, token, method, path string, body any) (*answer, error) {
	client, err := c.open()
	if err != nil {
		return nil, err
	}
	path, query, _ := strings.Cut(path, "?")
	u, err := url.Parse(c.settings.Address)
	if err != nil {
		return nil, err
	}
	u = u.JoinPath("v1", path)
	u.RawQuery = query
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Vault-Request", "true")
	if token != "" {
		req.Header.Set("X-Vault-Token", token)
	}
	if c.namespace != "" {
		req.Header.Set("X-Vault-Namespace", c.namespace)
	}
	resp, err := client.Do(req)
	if failed, ok := errors.AsType[*url.Error](err); ok { // it has the path, which its caller names
		err = failed.Err
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxAnswer:
		return nil, fmt.Errorf("the answer of Vault has more than %d MiB", maxAnswer>>20)
	case resp.StatusCode/100 != 2:
		return nil, refused(resp.StatusCode, text)
	}
	var a answer
	if len(bytes.TrimSpace(text)) > 0 {
		if err := json.Unmarshal(text, &a); err != nil {
			return nil, errors.New("the answer of Vault is not JSON: is vault.address that of Vault?")
		}
	}
	return &a, nil
}

// refused returns the error that an answer is; nil for one that says that there is nothing at the path.
func refused(status int, text []byte) error {
	var body struct {
		Errors []string `json:"errors"`
	}
	_ = json.Unmarshal(text, &body) // a proxy may have sent something else
	if status == http.StatusNotFound && len(body.Errors) == 0 {
		return nil
	}
	words := strings.Join(strings.Fields(strings.Join(body.Errors, "; ")), " ")
	if words == "" {
		words = http.StatusText(status)
	}
	return &refusal{status, strings.ToValidUTF8(words[:min(len(words), maxWords)], "")}
}

// secret returns an answer as templates see it.
func (a *answer) secret() *render.VaultSecret {
	s := &render.VaultSecret{RequestID: a.RequestID, LeaseID: a.LeaseID, LeaseDuration: a.LeaseDuration,
		Renewable: a.Renewable, Data: a.Data, Warnings: a.Warnings}
	if a.Auth != nil {
		s.Auth = &render.VaultAuth{ClientToken: a.Auth.ClientToken, Accessor: a.Auth.Accessor, Policies: a.Auth.Policies,
			Metadata: a.Auth.Metadata, LeaseDuration: a.Auth.LeaseDuration, Renewable: a.Auth.Renewable}
	}
	if a.WrapInfo != nil {
		s.WrapInfo = &render.VaultWrapInfo{Token: a.WrapInfo.Token, TTL: a.WrapInfo.TTL,
			CreationTime: a.WrapInfo.CreationTime, WrappedAccessor: a.WrapInfo.WrappedAccessor}
	}
	return s
}
