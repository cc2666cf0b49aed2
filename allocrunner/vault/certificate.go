package vault

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"taskapi/allocrunner/templates/render"
)

var errNoCertificate = errors.New("its answer has no certificate that is good")

// pems returns the texts of an answer that have PEMs, with a CA before those of its chain.
func (a *answer) pems() []byte {
	texts := []any{a.Data["private_key"], a.Data["certificate"], a.Data["issuing_ca"]}
	chain, _ := a.Data["ca_chain"].([]any)
	var all bytes.Buffer
	for _, v := range append(texts, chain...) {
		text, _ := v.(string)
		all.WriteString(text + "\n")
	}
	return all.Bytes()
}

// mostPEMs bounds the file that a certificate is looked for in, which the task may have written.
const mostPEMs = 1 << 20

// certificate returns the certificate, the key and the authorities in a text, and the time until the certificate is to
// be replaced: at nine tenths of its life, as consul-template does. The time is zero without a certificate that is good
// for the query.
func certificate(text []byte, q render.Query) (*render.PEMs, time.Duration) {
	pems := &render.PEMs{}
	var found *x509.Certificate
	if len(text) > mostPEMs {
		return nil, 0
	}
	for _, part := range regexp.MustCompile("(?s)-----BEGIN .+?-----END .+?-----").FindAll(text, -1) {
		block, _ := pem.Decode(part)
		if block == nil {
			continue
		}
		encoded := string(pem.EncodeToMemory(block))
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			pems.Key = encoded
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return nil, 0
		case !cert.IsCA:
			found, pems.Cert = cert, encoded
		case !slices.Contains(pems.CAChain, encoded):
			pems.CAChain = append(pems.CAChain, encoded)
			pems.CA = pems.CAChain[0]
		}
	}
	var asked struct {
		Name string `json:"common_name"`
	}
	_ = json.Unmarshal([]byte(q.Data), &asked) // a template has encoded it
	if found == nil || asked.Name != "" && asked.Name != found.Subject.CommonName &&
		!slices.Contains(found.DNSNames, asked.Name) {
		return nil, 0
	}
	life := found.NotAfter.Sub(found.NotBefore)
	return pems, time.Until(found.NotBefore.Add(life - life/10))
}
