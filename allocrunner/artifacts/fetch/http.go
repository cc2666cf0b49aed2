package fetch

import (
	"bufio"
	"context"
	"crypto/md5"  //nolint:gosec // the job chooses
	"crypto/sha1" //nolint:gosec // the job chooses
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"taskapi/allocrunner/artifacts/source"
)

const (
	// maxRedirects is Go's number.
	maxRedirects = 10
	// maxSums bounds a file of checksums.
	maxSums = 4 << 20
	// connectTimeout bounds the time until a server answers.
	connectTimeout = time.Minute
)

// download writes the content of a URL, which may have at most most bytes, to a new file.
func (f *fetcher) download(ctx context.Context, from *url.URL, to string, most int64) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.Limits.HTTPTimeout,
		fmt.Errorf("it took longer than %v, which the setting artifact.http_read_timeout allows", f.Limits.HTTPTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from.String(), nil)
	if err != nil {
		return errors.New("the source is no URL that can be asked for")
	}
	source := f.source.URL
	if from.Host == source.Host && from.Scheme == source.Scheme { // a file of checksums may be elsewhere
		for name, value := range f.artifact.Headers {
			req.Header.Set(name, value)
			if strings.EqualFold(name, "host") {
				req.Host = value
			}
		}
	}
	transport := f.transport()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: f.checkRedirect}
	response, err := client.Do(req) //nolint:bodyclose // the linter does not follow the body into a struct
	if err != nil {
		return explainHTTP(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answers %s", response.Status)
	}
	if response.ContentLength > most {
		return tooLarge("it has", response.ContentLength, most)
	}
	file, err := create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	n, err := io.Copy(file, io.LimitReader(&counted{response.Body, func(n int) {
		f.received(int64(n), max(response.ContentLength, 0))
	}}, most+1))
	if err != nil {
		return explainHTTP(ctx, err)
	}
	if n > most {
		return tooLarge("it has more than", most, most)
	}
	return nil
}

func tooLarge(has string, n, most int64) error {
	return fmt.Errorf("%s %d bytes, and the setting artifact.http_max_size allows %d", has, n, most)
}

func create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
}

// counted counts the bytes that are read.
type counted struct {
	io.Reader

	count func(int)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.count(n)
	return n, err
}

// explainHTTP returns the cause of an error, without the URL, whose query may be secret.
func explainHTTP(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if about, ok := errors.AsType[*url.Error](err); ok {
		err = about.Err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the connection ended before the artifact did")
	}
	return err
}

func (f *fetcher) transport() *http.Transport {
	dialer := &net.Dialer{Timeout: connectTimeout, Control: refuseLinkLocal}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment, // the setting artifact.set_environment_variables says which
		DialContext:           dialer.DialContext,
		TLSHandshakeTimeout:   connectTimeout,
		ResponseHeaderTimeout: connectTimeout,
		DisableCompression:    true, // an archive is stored as the server has it
		ForceAttemptHTTP2:     true,
		TLSClientConfig:       &tls.Config{InsecureSkipVerify: f.artifact.Insecure}, //nolint:gosec // the job's insecure
	}
}

// metadataV6 is the address of a cloud's metadata that is not link-local.
var metadataV6 = [16]byte{0: 0xfd, 2: 0x0e, 3: 0xc2, 14: 0x02, 15: 0x54}

// refuseLinkLocal refuses link-local addresses, where clouds give away the machine's own credentials: a server could
// redirect there.
func refuseLinkLocal(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return checkAddress(at.Addr())
}

// checkAddress returns an error for a link-local address.
func checkAddress(ip netip.Addr) error {
	if ip = ip.Unmap(); ip.IsLinkLocalUnicast() || ip.WithZone("") == netip.AddrFrom16(metadataV6) {
		return fmt.Errorf("nothing is fetched from the link-local address %s, where clouds keep a machine's credentials", ip)
	}
	return nil
}

// checkRedirect follows a server only over HTTP, never from https to http, and gives another host none of the job's
// headers, nor the source's query, which may be a signature.
func (f *fetcher) checkRedirect(req *http.Request, via []*http.Request) error {
	from := via[len(via)-1].URL
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("the server redirects more than %d times", maxRedirects)
	case req.URL.Scheme != "https" && req.URL.Scheme != "http":
		return fmt.Errorf("the server redirects to %q: only http and https are followed", req.URL.Scheme)
	case from.Scheme == "https" && req.URL.Scheme != "https":
		return errors.New("the server redirects from https to http, which is not followed")
	}
	if req.URL.Host != via[0].URL.Host {
		for name := range f.artifact.Headers {
			req.Header.Del(name)
		}
		req.Header.Del("Referer")
	}
	return nil
}

// hashes are those of the types of checksums.
var hashes = map[string]func() hash.Hash{
	"md5": md5.New, "sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New,
}

// verify compares a file with the source's checksum.
func (f *fetcher) verify(ctx context.Context, file string) error {
	text := f.source.Checksum
	if from, ok := strings.CutPrefix(text, "file:"); ok {
		var err error
		if text, err = f.listed(ctx, from); err != nil {
			return fmt.Errorf("the file of checksums: %w", err)
		}
	}
	kind, want, err := source.ParseChecksum(text)
	if err != nil {
		return err
	}
	sum := hashes[kind]()
	opened, err := os.Open(file)
	if err != nil {
		return err
	}
	defer opened.Close()
	if _, err := io.Copy(sum, opened); err != nil {
		return err
	}
	if got := sum.Sum(nil); hex.EncodeToString(got) != hex.EncodeToString(want) {
		return fmt.Errorf("the checksum differs: the artifact has %s:%x, and the job wants %s:%x", kind, got, kind, want)
	}
	return nil
}

// listed returns the checksum of the source's file in a file of checksums, as sha256sum writes it, also with --tag.
func (f *fetcher) listed(ctx context.Context, from string) (string, error) {
	at, err := url.Parse(from)
	if err != nil || at.Scheme != "https" && at.Scheme != "http" {
		return "", errors.New("it needs a URL: checksum = \"file:https://HOST/SHA256SUMS\"")
	}
	to := filepath.Join(f.stage, "sums")
	counts := f.received
	f.received = func(int64, int64) {}
	err = f.download(ctx, at, to, maxSums)
	f.received = counts
	if err != nil {
		return "", err
	}
	file, err := os.Open(to)
	if err != nil {
		return "", err
	}
	defer file.Close()
	name := path.Base(f.source.URL.Path)
	lines := bufio.NewScanner(file)
	var sole string
	n := 0
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 4 && fields[2] == "=": // SHA256 (NAME) = HEX
			if path.Base(strings.Trim(fields[1], "()")) == name {
				return strings.ToLower(fields[0]) + ":" + fields[3], nil
			}
		case len(fields) == 2: // HEX *NAME
			if path.Base(strings.TrimLeft(fields[1], "*?")) == name {
				return fields[0], nil
			}
		case len(fields) == 1:
			sole = fields[0]
			n++
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	if n == 1 {
		return sole, nil
	}
	return "", fmt.Errorf("it has no line for %q", name)
}
