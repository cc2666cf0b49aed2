package revocation_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/internal/must"
)

// FuzzList: whatever the file of a list holds, it is damaged or can be asked and added to; and what was added is
// refused by who opens it next.
func FuzzList(f *testing.F) {
	for _, seed := range []string{
		`{"format":1,"max_ttl":0,"rules":[{"jti":"a","created_at":1,"until":2000000000}]}`,
		`{"format":1,"rules":[{"alloc":"a1","task":"web","before":1800000000,"until":9223372036854775807}]}`,
		`{"format":1,"max_ttl":9223372036854775807,"rules":null}`, `{"format":2}`, `{"format":1,"rules":[{}]}`, `[]`, ``,
	} {
		f.Add([]byte(seed))
	}
	now := time.Unix(1_800_000_000, 0)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		must.OK(t, os.WriteFile(filepath.Join(dir, "generation"), []byte("."), 0o600))
		path := filepath.Join(dir, "revocations.json")
		must.OK(t, errors.Join(os.RemoveAll(path), os.WriteFile(path, data, 0o600), os.Chmod(dir, 0o700)))
		open := func() (*revocation.List, error) {
			return revocation.Open(revocation.Config{Dir: dir, Now: func() time.Time { return now }})
		}
		list, err := open()
		if err != nil {
			if !errors.Is(err, revocation.ErrDamaged) {
				t.Fatal(err)
			}
			return
		}
		defer list.Close()
		for _, r := range list.Rules() {
			_ = r.String()
		}
		stolen := &identity.Claims{ID: "stolen", AllocationID: "a1", Task: "web", IssuedAt: now.Unix(),
			ExpiresAt: now.Unix() + 60}
		if _, err := list.Add(revocation.Rule{TokenID: "stolen"}); err != nil {
			if !errors.Is(err, revocation.ErrFull) {
				t.Fatal(err)
			}
			return
		}
		again := must.Get(open())(t)
		defer again.Close()
		if !list.Revoked(stolen) || !again.Revoked(stolen) {
			t.Fatalf("what was added is not refused: %+v", again.Rules())
		}
	})
}
