package services

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/route"
)

// choice asks for some of a service's registrations. A client that always sends the same key gets the same ones, in the
// same order, while they exist. Clients with different keys are spread over all.
type choice struct {
	most int
	key  string
}

// choiceOf reads ?choose=; nil without it.
func choiceOf(text string) (*choice, error) {
	if text == "" {
		return nil, nil
	}
	number, key, _ := strings.Cut(text, "|")
	most, err := strconv.ParseUint(number, 10, 31)
	if err != nil || key == "" {
		const right = "failed to choose services: Parameter for choose must be in form '<number>|<key>', not %s"
		return nil, route.Invalid(right, route.Clip(text))
	}
	return &choice{int(most), key}, nil
}

// from returns the chosen registrations: those with the least weights (rendezvous hashing).
func (c *choice) from(all []*api.ServiceRegistration) []*api.ServiceRegistration {
	type weighed struct {
		weight       []byte
		registration *api.ServiceRegistration
	}
	weights := make([]weighed, len(all))
	for i, registration := range all {
		weights[i] = weighed{c.weight(registration), registration}
	}
	slices.SortStableFunc(weights, func(a, b weighed) int {
		return cmp.Or(bytes.Compare(a.weight, b.weight), cmp.Compare(a.registration.ID, b.registration.ID))
	})
	chosen := make([]*api.ServiceRegistration, 0, min(c.most, len(all)))
	for _, w := range weights[:cap(chosen)] {
		chosen = append(chosen, w.registration)
	}
	return chosen
}

// weight is Nomad's, so that both choose the same: SHA-256 over the port, as eight bytes, the texts of the
// registration, and the key.
func (c *choice) weight(s *api.ServiceRegistration) []byte {
	text := binary.BigEndian.AppendUint64(nil, uint64(s.Port)) //nolint:gosec // a port, of 16 bits
	names := []string{s.AllocID, s.ID, s.Namespace, s.Address, s.ServiceName}
	for _, part := range slices.Concat(names, s.Tags, []string{c.key}) {
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return sum[:]
}
