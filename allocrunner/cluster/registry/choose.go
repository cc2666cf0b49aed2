package registry

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Choose returns some of a service's registrations: at most that many, those with the least weights for a key
// (rendezvous hashing). The same key always gets the same ones, in the same order, while they exist. Different keys are
// spread over all.
func Choose(all []*api.ServiceRegistration, most int, key string) []*api.ServiceRegistration {
	type weighed struct {
		weight       []byte
		registration *api.ServiceRegistration
	}
	weights := make([]weighed, len(all))
	for i, registration := range all {
		weights[i] = weighed{weight(registration, key), registration}
	}
	slices.SortStableFunc(weights, func(a, b weighed) int {
		return cmp.Or(bytes.Compare(a.weight, b.weight), cmp.Compare(a.registration.ID, b.registration.ID))
	})
	chosen := make([]*api.ServiceRegistration, 0, min(most, len(all)))
	for _, w := range weights[:cap(chosen)] {
		chosen = append(chosen, w.registration)
	}
	return chosen
}

// weight is Nomad's, so that both choose the same: SHA-256 over the port, as eight bytes, the texts of the
// registration, and the key.
func weight(s *api.ServiceRegistration, key string) []byte {
	text := binary.BigEndian.AppendUint64(nil, uint64(s.Port)) //nolint:gosec // a port, of 16 bits
	names := []string{s.AllocID, s.ID, s.Namespace, s.Address, s.ServiceName}
	for _, part := range slices.Concat(names, s.Tags, []string{key}) {
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return sum[:]
}
