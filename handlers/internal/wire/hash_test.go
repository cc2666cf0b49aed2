package wire

import (
	"encoding/base64"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// TestHashes holds hashes against those that a Nomad agent has answered for the same objects.
func TestHashes(t *testing.T) {
	for want, got := range map[string][]byte{
		"C7UbjDwBK0dK8wQq7Izg7SJIzaV+lIo2X7wRtzY3pSw=": NamespaceOf(
			&api.Namespace{Name: "default", Description: "Default shared namespace"}).Hash,
		"BUJ3BerTfrqFVm1P+vZr1gz9ubOkd+JAvYjNAJyaU9Y=": ACLTokenOf(
			&api.ACLToken{Name: "Bootstrap Token", Type: "management", Global: true}).Hash,
	} {
		if got := base64.StdEncoding.EncodeToString(got); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
