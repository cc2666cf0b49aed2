package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"taskapi/identity"
)

// issuer is another issuer's key set that is followed while the sidecar runs.
type issuer struct {
	identity.KeySource
	follow func(context.Context, *slog.Logger)
}

// openIssuers opens the key sets of --jwks: a file, which must be good now, or a URL, which is fetched in the background.
func openIssuers(places []string, logger *slog.Logger) ([]issuer, error) {
	var issuers []issuer
	for _, place := range places {
		opened, err := openIssuer(place, logger)
		if err != nil {
			return nil, usage(fmt.Errorf("--jwks %s: %w", place, err))
		}
		issuers = append(issuers, opened)
	}
	return issuers, nil
}

func openIssuer(place string, logger *slog.Logger) (issuer, error) {
	if strings.HasPrefix(place, "http://") || strings.HasPrefix(place, "https://") {
		source, err := identity.NewURLSource(identity.URLSourceConfig{URL: place})
		if err != nil {
			return issuer{}, err
		}
		return issuer{source, source.Run}, nil
	}
	source, err := identity.OpenFileSource(place)
	if err != nil {
		return issuer{}, err
	}
	for _, key := range source.Keys().Skipped() {
		logger.Warn("a key of another issuer is not used: only Ed25519 keys verify tokens here", "jwks", place, "key", key.ID, "type", key.Type)
	}
	return issuer{source, source.Watch}, nil
}

// keySources are the sources of all keys that are trusted, our own first.
func (s *sidecar) keySources() (local identity.KeySource, foreign []identity.KeySource) {
	for _, i := range s.issuers {
		foreign = append(foreign, i.KeySource)
	}
	return s.keyring, foreign
}

// checkIssuer refuses what is no URL below which others could find the key set. Empty is none.
func checkIssuer(flag, issuer string) error {
	if issuer == "" {
		return nil
	}
	if u, err := url.Parse(issuer); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return usage(fmt.Errorf("%s %q is no URL: give one like https://taskapi.example.org", flag, issuer))
	}
	return nil
}

// openIDConfiguration is the discovery document of our tokens' issuer. The key set is found below the issuer's own URL.
func openIDConfiguration(issuer string) []byte {
	return identity.OpenIDConfiguration(issuer, strings.TrimSuffix(issuer, "/")+"/.well-known/jwks.json")
}
