package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"taskapi/identity"
	"taskapi/internal/proc"
	"taskapi/internal/safedir"
	"taskapi/socket"
)

// issuer is another issuer of tokens. follow keeps its keys up to date.
type issuer struct {
	identity.Issuer
	follow func(context.Context, *slog.Logger)
}

// KeySource splits an element of JWKS into the file or URL, which may have commas, and the options with their first
// comma. It reports whether the source is a URL.
func KeySource(value string) (source, options string, remote bool) {
	source, options = cutOptions(value)
	return source, options, isURL(source)
}

// optionStart finds the first option of an element of JWKS.
var optionStart = regexp.MustCompile(`,(claim\.|[a-z]+=)`)

func cutOptions(value string) (source, options string) {
	if at := optionStart.FindStringIndex(value); at != nil {
		return value[:at[0]], value[at[0]:]
	}
	return value, ""
}

// isURL reports whether a source of keys is a URL, and not a file.
func isURL(source string) bool { return strings.Contains(source, "://") }

// issuerOf reads an element of JWKS: SOURCE[,iss=ISSUER][,aud=AUDIENCE]...[,exp=optional][,claim.NAME=PATTERN]...
func issuerOf(value string) (source string, is identity.Issuer, err error) {
	source, options := cutOptions(value)
	if source == "" {
		return "", is, errors.New("names no file or URL")
	}
	for _, option := range strings.Split(options, ",")[1:] {
		name, text, _ := strings.Cut(option, "=")
		claim, isClaim := strings.CutPrefix(name, "claim.")
		switch {
		case text != "" && isClaim:
			if is.Mapping == nil {
				is.Mapping = new(identity.Mapping)
			}
			if err := is.Mapping.Add(claim, text); err != nil {
				return "", is, err
			}
		case text != "" && name == "iss" && is.Name != "":
			return "", is, errors.New("iss= is there twice: give each issuer an entry of its own")
		case text != "" && name == "iss":
			is.Name = text
		case text != "" && name == "aud":
			is.Audiences = append(is.Audiences, text)
		case option == "exp=optional":
			is.NoExpiry = true
		default:
			return "", is, fmt.Errorf("%q is no option: after the file or URL come iss=ISSUER, aud=AUDIENCE, exp=optional "+
				"and claim.NAME=PATTERN", option)
		}
	}
	return source, is, checkMapping(is)
}

// checkMapping refuses mappings that would give away more than their author meant.
func checkMapping(is identity.Issuer) error {
	switch {
	case is.Mapping == nil:
		return nil
	case is.NoExpiry:
		return errors.New("exp=optional is for tokens with Nomad's claims: leave out exp=optional, or claim.NAME=")
	}
	return is.Mapping.Check()
}

// openIssuers opens the key sets of other issuers. A file is read now; a URL is fetched later, in the background.
func openIssuers(places []string, logger *slog.Logger) ([]issuer, error) {
	var issuers []issuer
	for _, place := range places {
		opened, err := openIssuer(place, logger)
		if err != nil {
			return nil, invalid(fmt.Errorf("JWK set %s: %w", place, err))
		}
		issuers = append(issuers, opened)
	}
	return issuers, nil
}

func openIssuer(value string, logger *slog.Logger) (issuer, error) {
	place, is, err := issuerOf(value)
	if err != nil {
		return issuer{}, err
	}
	if isURL(place) {
		config, err := fetched(place, logger)
		if err != nil {
			return issuer{}, err
		}
		source, err := identity.NewURLSource(config)
		if err != nil {
			return issuer{}, err
		}
		is.Keys = source
		return issuer{is, source.Run}, nil
	}
	if err := checkTrusted(place); err != nil {
		return issuer{}, err
	}
	source, err := identity.OpenFileSource(place)
	if err != nil {
		return issuer{}, err
	}
	for _, key := range source.Keys().Skipped() {
		logger.Warn("a key of another issuer is not used: its kind verifies no tokens here",
			"jwks", place, "key", key.ID, "type", key.Type)
	}
	is.Keys = source
	return issuer{is, source.Watch}, nil
}

// checkTrusted refuses a file that other users than root and this one could change.
func checkTrusted(path string) error {
	return UnwrapPath(safedir.TrustFile(path))
}

// fetched returns how to fetch a key set. It refuses http to another machine, because anybody on the way could replace
// the keys.
func fetched(place string, logger *slog.Logger) (identity.URLSourceConfig, error) {
	config := identity.URLSourceConfig{URL: place}
	if path, ok := strings.CutPrefix(place, "unix://"); ok {
		config.Name, config.URL = place, "http://localhost"+keySetPath
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialTrusted(ctx, path) }
		config.Transport = &http.Transport{DisableKeepAlives: true, DialContext: dial}
		if !filepath.IsAbs(path) {
			return config, errors.New("the path of a socket is absolute, such as unix:///run/taskapi/keys.sock")
		}
		return config, nil
	}
	u, err := url.Parse(place)
	if err != nil || u.Scheme != "http" {
		return config, nil //nolint:nilerr // NewURLSource returns a better error
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if (err != nil || !ip.IsLoopback()) && !strings.EqualFold(u.Hostname(), "localhost") {
		return config, errors.New("http lets anybody on the way replace the keys: use https, or a file; " +
			"http is for 127.0.0.1, ::1 and localhost alone")
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16)
	if err == nil && int(port) >= proc.FirstUnprivilegedPort() {
		logger.Warn("the process that listens on this port can sign identities that are trusted here, and any user of this "+
			"machine can listen there while the issuer does not; use https, a file, or a Unix socket (unix:///PATH of "+
			"'taskapi keyring serve')", "jwks", place)
	}
	return config, nil
}

// dialTrusted connects to a socket on which root or this user listens. It refuses other listeners.
func dialTrusted(ctx context.Context, path string) (net.Conn, error) {
	conn, err := socket.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	listener, err := socket.ListenerOf(conn)
	if err == nil && listener.UID != 0 && int(listener.UID) != os.Geteuid() {
		err = fmt.Errorf("%s: user %d listens there; keys are taken from root and this user alone", path, listener.UID)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// CheckIssuer returns an error for an issuer that is no URL below which others could find the key set. An empty issuer
// is none.
func CheckIssuer(issuer string) error {
	if issuer == "" {
		return nil
	}
	u, err := url.Parse(issuer)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return invalid(fmt.Errorf("%q is no URL: give one like https://taskapi.example.org", issuer))
	}
	if strings.ContainsAny(issuer, "?#") || u.User != nil { // OpenID Connect Core 1.0, section 2
		return invalid(fmt.Errorf("%q has a query, a fragment or a user, which no issuer may have: give one like "+
			"https://taskapi.example.org", issuer))
	}
	return nil
}

// OpenIDConfiguration returns the discovery document of an issuer, whose key set is found below its own URL.
func OpenIDConfiguration(issuer string) []byte {
	return identity.OpenIDConfiguration(issuer, strings.TrimSuffix(issuer, "/")+"/.well-known/jwks.json")
}
